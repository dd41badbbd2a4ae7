"""GenerationRequest: the fields that completions and chats share. Unsupported fields are refused by name.

https://platform.openai.com/docs/api-reference; the extensions have vLLM's names.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from decoding.grammar.structured import Structured
from decoding.sampling_params import SamplingParams
from endpoint.http.errors import ApiError, shown_name
from endpoint.requests.fields import (
    LARGEST,
    AllowedIds,
    BadWords,
    LogitBias,
    ModelName,
    Number,
    Stop,
    Strict,
    TokenId,
    unsupported,
    wrong,
)
from endpoint.requests.refusal import refusal
from pipeline.inputs.response_format import FIELDS, FormatError, form_field, structured_of
from pipeline.text.chat import Chat

# Values of unsupported fields that ask for nothing, which are accepted.
_EMPTY_VALUES: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),  # there are no tools to call
    "store": (False,),
    "service_tier": ("auto", "default"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
}
_SAMPLING_FIELDS = {  # with the same name and form in SamplingParams
    *("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("stop_token_ids", "ignore_eos", "min_tokens", "allowed_token_ids", "bad_words"),
}
_UNSUPPORTED = frozenset(
    {
        *(*_EMPTY_VALUES, "audio", "prediction", "reasoning_effort", "verbosity", "web_search_options", "moderation"),
    }
)


# Texts that say who asks and why. They cannot change the answer, and nothing is kept of them.
_Label = Annotated[str, Field(max_length=512)]


class StreamOptions(Strict):
    """Options of a streamed answer."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False
    include_obfuscation: Literal[False] | None = None


class GenerationRequest(Strict):
    """Body of a request to generate."""

    _own_unsupported: ClassVar[frozenset[str]] = frozenset()
    _own_empty_values: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    id_prefix: ClassVar[str]  # of the answer's id

    model: ModelName | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=4096)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop = Field([])
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    logit_bias: LogitBias = Field({})
    response_format: dict[str, Any] | None = None
    user: _Label | None = None
    safety_identifier: _Label | None = None
    prompt_cache_key: _Label | None = None
    metadata: Annotated[dict[Annotated[str, Field(max_length=64)], _Label], Field(max_length=16)] | None = None

    # Extensions, with vLLM's names.
    top_k: Annotated[int, Field(ge=-1, le=LARGEST)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(ge=0.01, le=10)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=LARGEST)] | None = None
    allowed_token_ids: AllowedIds = None
    bad_words: BadWords = Field([])
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=LARGEST)] | None = None
    # Our own extensions: each streamed chunk says which part of its text was drafted, and what was drafted in vain; and
    # how many tokens may be drafted in a round, which changes no text where verification is coupled.
    include_draft_spans: bool | None = None
    include_rejected_drafts: bool | None = None
    num_speculative_tokens: Annotated[int, Field(ge=0, le=LARGEST)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            raise ApiError(400, "The body must be a JSON object.", code="invalid_value")
        known, kept = cls.model_fields, {}
        for name, value in body.items():
            if name in known:
                kept[name] = value
            elif value is None:
                continue
            elif name in _UNSUPPORTED or name in cls._own_unsupported:
                empty_values = {**_EMPTY_VALUES, **cls._own_empty_values}.get(name, ())
                if not any(type(value) is type(empty) and value == empty for empty in empty_values):
                    raise unsupported(name)
            else:
                raise wrong(shown_name(name), "there is no such field", "unknown_parameter")
        return kept

    @model_validator(mode="after")
    def _check_fields_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options", "it needs stream to be true")
        options = self.stream_options
        if options is not None and options.continuous_usage_stats and not options.include_usage:
            raise wrong("stream_options.continuous_usage_stats", "it needs include_usage to be true")
        if self.truncate_prompt_tokens == 0:
            raise wrong("truncate_prompt_tokens", "expected a number of tokens, or -1 for as many as there is room for")
        if self.prompt_logprobs is not None and self.stream:
            raise wrong("prompt_logprobs", "it is for whole answers; leave out stream")
        if self.include_draft_spans and not self.stream:
            raise wrong("include_draft_spans", "it needs stream to be true")
        if self.include_rejected_drafts and not self.include_draft_spans:
            raise wrong("include_rejected_drafts", "it needs include_draft_spans to be true")
        return self

    @property
    @abstractmethod
    def prompts(self) -> Mapping[str, str | list[Any] | Chat]:
        """Each prompt by the path of its field in the body: a text, token ids or a chat."""

    @abstractmethod
    def params(self) -> SamplingParams:
        """Return what each sample is drawn with. Raises ApiError."""

    @property
    def generates(self) -> bool:
        """Whether any token is to be written behind the prompts."""
        return True

    @property
    def needs_prompt_text(self) -> bool:
        """Whether the text of prompts that came as token ids is needed."""
        return False

    @property
    def num_choices(self) -> int:
        """Choices in the answer to each prompt."""
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with a chunk of token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def counts_continuously(self) -> bool:
        """Whether each chunk has the token counts so far."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def form_field(self) -> str | None:
        """The path of the field that says what form the output has; None without a form."""
        return form_field(self.model_dump(include=set(FIELDS)))

    def _params(self, *, max_tokens: int, num_samples: int, logprobs: int | None) -> SamplingParams:
        """Return sampling parameters, or raise ApiError for fields that contradict each other.

        Whether a grammar can be compiled is known where the engine is.
        """
        try:
            structured = structured_of(self.model_dump(include=set(FIELDS)))
            structured_params = None if structured is None else Structured.of(structured)
        except FormatError as error:
            raise wrong(error.param, error.message) from error
        except ValueError as error:
            raise refusal(str(error), self.form_field) from error
        try:
            return SamplingParams(
                **self.model_dump(include=_SAMPLING_FIELDS, exclude_none=True),
                top_k=max(0, self.top_k or 0),
                logit_bias={int(token_id): bias for token_id, bias in self.logit_bias.items()},
                stop=tuple(self.stop),
                max_tokens=max_tokens,
                n=num_samples,
                logprobs=logprobs,
                structured=structured_params,
            )
        except ValueError as error:
            raise refusal(str(error), self.form_field) from error
