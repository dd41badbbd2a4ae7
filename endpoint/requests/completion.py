"""Body of POST /v1/completions (https://platform.openai.com/docs/api-reference/completions)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from decoding.sampling_params import SamplingParams
from endpoint.requests.fields import LARGEST, Prompt, wrong
from endpoint.requests.generation import GenerationRequest


class CompletionRequest(GenerationRequest):
    """Body of POST /v1/completions."""

    _own_unsupported: ClassVar[frozenset[str]] = frozenset({"suffix"})
    id_prefix: ClassVar[str] = "cmpl-"

    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0, le=LARGEST)] | None = None
    best_of: Annotated[int, Field(ge=1, le=4096)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None

    @model_validator(mode="after")
    def _check_completion(self) -> Self:
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise wrong("max_tokens", "0 tokens can be asked for only with echo or prompt_logprobs")
        if self.best_of is not None and self.best_of < self.num_choices:
            raise wrong("best_of", f"it must not be less than n, which is {self.num_choices}")
        if self.stream and self.num_samples > self.num_choices:
            raise wrong("best_of", "the best of more samples than n cannot be streamed")
        self.params()
        return self

    @property
    def prompts(self) -> dict[str, str | list[Any]]:
        """Each prompt, a text or token ids, by the path of its field in the body."""
        if isinstance(self.prompt, str) or type(self.prompt[0]) is int:
            return {"prompt": self.prompt}
        return {f"prompt[{index}]": prompt for index, prompt in enumerate(self.prompt)}

    @property
    def num_samples(self) -> int:
        """Samples drawn for each prompt, from which the choices are taken."""
        return self.best_of or self.num_choices

    @property
    def needs_prompt_text(self) -> bool:
        """Whether the answer shows the prompts."""
        return bool(self.echo)

    @property
    def generates(self) -> bool:
        """Whether any token is to be written behind the prompts; False where they are only scored or echoed."""
        return self.max_tokens != 0

    def params(self) -> SamplingParams:
        """Return what each sample is drawn with. Raises ApiError."""
        logprobs = self.logprobs
        if self.num_samples > self.num_choices:
            logprobs = logprobs or 0  # which choices are best is decided by them
        max_tokens = 16 if self.max_tokens is None else max(1, self.max_tokens)
        return self._params(max_tokens=max_tokens, num_samples=self.num_samples, logprobs=logprobs)
