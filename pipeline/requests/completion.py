"""Body of POST /v1/completions (https://platform.openai.com/docs/api-reference/completions)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.errors import FieldError
from pipeline.requests.asked import Asked
from pipeline.requests.body import asks, sampled
from pipeline.requests.kinds import BOOLEAN, integer
from pipeline.requests.token_kinds import PROMPTS


@dataclass(frozen=True, kw_only=True)
class CompletionAsked(Asked):
    """What a completion asks for."""

    id_prefix: ClassVar[str] = "cmpl-"
    default_max_tokens: ClassVar[int] = 16  # as in OpenAI's API

    prompt: str | list[Any] = asks(
        PROMPTS, "A text, token ids, or a list of either; a row of a batch has one.", is_required=True
    )
    max_tokens: int | None = asks(integer(ge=0), "Most output tokens; 16 unless given.")
    best_of: int | None = asks(
        integer(ge=1, le=4096), "Samples for each prompt, of which the n likeliest are shown.", is_of_row=True
    )
    logprobs: int | None = sampled(
        integer(ge=0, le=20), "Log-probabilities of each token and of this many likely ones."
    )
    echo: bool | None = asks(BOOLEAN, "Show the prompt before the text.", in_batches="a row has its prompt beside it")

    def check(self) -> None:
        super().check()
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise FieldError("max_tokens", "0 tokens can be asked for only with echo or prompt_logprobs")
        if self.best_of is not None and self.best_of < self.num_choices:
            raise FieldError("best_of", f"it must not be less than n, which is {self.num_choices}")
        if self.stream and self.num_samples > self.num_choices:
            raise FieldError("best_of", "the best of more samples than n cannot be streamed")

    def check_for_batch(self) -> None:
        super().check_for_batch()
        if len(self.prompts) > 1:
            raise FieldError("prompt", "a row of a batch has one prompt; give each prompt its own line")

    def sampling(self) -> dict[str, Any]:
        limit = {} if self.max_tokens is None else {"max_tokens": max(1, self.max_tokens)}
        return {**super().sampling(), **limit}

    @property
    def prompts(self) -> dict[str, str | list[Any]]:
        """Each prompt, a text or token ids, by the path of its field in the body."""
        if isinstance(self.prompt, str) or type(self.prompt[0]) is int:
            return {"prompt": self.prompt}
        return {f"prompt[{index}]": prompt for index, prompt in enumerate(self.prompt)}

    @property
    def num_samples(self) -> int:
        return self.best_of or self.num_choices

    @property
    def needs_prompt_text(self) -> bool:
        return bool(self.echo)

    @property
    def generates(self) -> bool:
        return self.max_tokens != 0
