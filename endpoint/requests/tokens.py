"""Bodies of POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from endpoint.requests.fields import ModelName, check_text, wrong
from endpoint.requests.messages import Messages, as_rows
from endpoint.requests.prompt_field import TokenIds


class TokenizeRequest(BaseModel):
    """Body of POST /tokenize: a prompt, or the messages of a chat."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: ModelName | None = None
    prompt: str | None = None
    messages: Messages | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise wrong("prompt", "give a prompt or messages, and not both")
        if self.prompt is not None:
            check_text("prompt", self.prompt)
        return self

    def rows(self) -> list[dict[str, str]]:
        """The messages as a row of the offline job has them."""
        return as_rows(self.messages or [])


class DetokenizeRequest(BaseModel):
    """Body of POST /detokenize."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: ModelName | None = None
    tokens: TokenIds
