"""RowOptions: what a row asks for beside its chat and its parameters of sampling, by the names of the API."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from actors.settings import EngineSettings
from decoding.sampling_params import SamplingParams
from pipeline.errors import FieldError
from pipeline.inputs.rows import InputRow
from pipeline.requests.asked import check_num_drafted, num_kept_tokens
from pipeline.text.chat import ChatPrompt
from pipeline.text.codec import TextCodec


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """The options of a row. Rows of OpenAI batch files have them, which are checked already."""

    best_of: int | None = None
    num_speculative_tokens: int | None = None
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    @classmethod
    def of(cls, row: InputRow) -> RowOptions:
        """Return the options that the row has."""
        return cls(**{field.name: row.asked[field.name] for field in fields(cls) if field.name in row.asked})

    def given(self) -> list[str]:
        """Return the names of the options that ask for something."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]

    def check(self, params: SamplingParams, engine: EngineSettings) -> None:
        """Raise FieldError for what the engine or the run's own parameters do not allow."""
        if self.best_of is not None and self.best_of < params.n:
            raise FieldError("best_of", f"it must not be less than n, which is {params.n}")
        check_num_drafted(self.num_speculative_tokens, engine.num_speculative_tokens)

    def kept(self, prompt: ChatPrompt, max_tokens: int, max_model_len: int | None, codec: TextCodec) -> ChatPrompt:
        """Return the prompt, or the last of its tokens if it is to have fewer. Raises FieldError."""
        if self.truncate_prompt_tokens is None:
            return prompt
        if max_model_len is None:
            raise FieldError("truncate_prompt_tokens", "it needs engine.max_model_len to be set here")
        num_kept = num_kept_tokens(self.truncate_prompt_tokens, max_tokens, max_model_len)
        if len(prompt.token_ids) <= num_kept:
            return prompt
        token_ids = prompt.token_ids[-num_kept:]
        return replace(prompt, text=codec.of_all_tokens.decode(token_ids), token_ids=token_ids)

    def shown_codec(self, codec: TextCodec, *, has_parts: bool = False) -> TextCodec:
        """Return the codec of the row's texts; those with parts show the tokens that mark calls and thoughts."""
        if not self.skip_special_tokens:
            return codec.of_all_tokens
        return codec.of_answers if has_parts else codec
