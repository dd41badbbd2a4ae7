"""Bodies of POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from endpoint.requests.conversation import ConversationFields
from endpoint.requests.fields import ModelName, Strict, TokenIds, check_text, wrong
from pipeline.text.chat import Chat


class TokenizeRequest(ConversationFields):
    """Body of POST /tokenize: a prompt, or the messages of a chat."""

    model: ModelName | None = None
    prompt: str | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise wrong("prompt", "give a prompt or messages, and not both")
        if self.prompt is not None:
            check_text("prompt", self.prompt)
            self.refuse_without_messages()
        else:
            self.chat()
        return self

    @property
    def text(self) -> tuple[str, str | Chat]:
        """The name of the field that is given, and what it holds."""
        if self.prompt is not None:
            return "prompt", self.prompt
        return "messages", self.chat()


class DetokenizeRequest(Strict):
    """Body of POST /detokenize."""

    model: ModelName | None = None
    tokens: TokenIds
