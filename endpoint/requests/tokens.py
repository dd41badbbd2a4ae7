"""Bodies of POST /tokenize and /detokenize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.errors import FieldError
from pipeline.requests.body import Body, asks
from pipeline.requests.chat import Conversation
from pipeline.requests.kinds import TEXT, text
from pipeline.requests.token_kinds import TOKEN_IDS
from pipeline.text.chat import Chat

_MODEL = "The model, by a name under which it is served."


@dataclass(frozen=True, kw_only=True)
class TokenizeBody(Conversation):
    """Body of POST /tokenize: a prompt, or the messages of a chat."""

    model: str | None = asks(text(512), _MODEL)
    prompt: str | None = asks(TEXT, "A text.")

    def check(self) -> None:
        """Raise FieldError for no prompt, for two, and for fields that only a chat has."""
        if (self.prompt is None) == (self.messages is None):
            raise FieldError("prompt", "give a prompt or messages, and not both")
        if self.messages is None and (others := self.of_chat()):
            raise FieldError(next(iter(others)), "it needs messages")

    @property
    def text(self) -> tuple[str, str | Chat]:
        """The name of the field that is given, and what it holds."""
        if self.prompt is not None:
            return "prompt", self.prompt
        return "messages", Chat.of(self.messages, self.of_chat())


@dataclass(frozen=True, kw_only=True)
class DetokenizeBody(Body):
    """Body of POST /detokenize."""

    tokens: list[Any] = asks(TOKEN_IDS, "The token ids of a text.", is_required=True)
    model: str | None = asks(text(512), _MODEL)
