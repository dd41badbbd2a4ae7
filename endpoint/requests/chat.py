"""Body of POST /v1/chat/completions (https://platform.openai.com/docs/api-reference/chat)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from decoding.sampling_params import SamplingParams
from endpoint.requests.conversation import ConversationFields
from endpoint.requests.fields import LARGEST, wrong
from endpoint.requests.generation import GenerationRequest
from endpoint.requests.messages import Messages
from pipeline.text.chat import Chat


class ChatRequest(ConversationFields, GenerationRequest):
    """Body of POST /v1/chat/completions. Unless it says otherwise, a last message of the assistant is continued."""

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
        self.chat()
        self.params()
        return self

    @property
    def prompts(self) -> dict[str, Chat]:
        """The one prompt: the chat, under the name of the field with its messages."""
        return {"messages": self.chat()}

    def params(self) -> SamplingParams:
        """Return what each sample is drawn with; without a limit it may fill the context. Raises ApiError."""
        limit = self.max_completion_tokens or self.max_tokens or LARGEST
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self._params(max_tokens=limit, num_samples=self.num_choices, logprobs=logprobs)
