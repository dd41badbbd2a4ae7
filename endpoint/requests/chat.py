"""Body of POST /v1/chat/completions (https://platform.openai.com/docs/api-reference/chat)."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from decoding.sampling_params import SamplingParams
from endpoint.requests.fields import LARGEST, wrong
from endpoint.requests.generation import GenerationRequest
from endpoint.requests.messages import Messages, as_rows


class ChatRequest(GenerationRequest):
    """Body of POST /v1/chat/completions. Messages that end with the assistant's are continued."""

    messages: Messages
    max_tokens: Annotated[int, Field(ge=1, le=LARGEST)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=LARGEST)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise wrong("top_logprobs", "it needs logprobs to be true")
        self.params()
        return self

    @property
    def num_choices(self) -> int:
        """Answers."""
        return self.n or 1

    def rows(self) -> list[dict[str, str]]:
        """The messages as a row of the offline job has them."""
        return as_rows(self.messages)

    def params(self) -> SamplingParams:
        """What each sample is drawn with; without a limit, as long as the context. Raises ApiError."""
        limit = self.max_completion_tokens or self.max_tokens or LARGEST
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self._params(max_tokens=limit, num_samples=self.num_choices, logprobs=logprobs)
