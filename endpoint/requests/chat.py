"""Body of POST /v1/chat/completions (https://platform.openai.com/docs/api-reference/chat)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from decoding.sampling_params import SamplingParams
from endpoint.requests.fields import LARGEST, wrong
from endpoint.requests.generation import GenerationRequest
from endpoint.requests.messages import Conversation, Messages


class ChatRequest(GenerationRequest):
    """Body of POST /v1/chat/completions. If the last message is the assistant's, it is continued."""

    id_prefix: ClassVar[str] = "chatcmpl-"

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
    def prompts(self) -> dict[str, Conversation]:
        """The one prompt: the messages, under the name of their field."""
        return {"messages": Conversation(self.messages)}

    def params(self) -> SamplingParams:
        """Return what each sample is drawn with; without a limit it may fill the context. Raises ApiError."""
        limit = self.max_completion_tokens or self.max_tokens or LARGEST
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self._params(max_tokens=limit, num_samples=self.num_choices, logprobs=logprobs)
