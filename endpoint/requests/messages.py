"""Messages of a chat: roles and text. Other contents that the OpenAI API knows are refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from endpoint.http.errors import shown_name
from endpoint.requests.fields import Strict, check_text, unsupported, wrong
from pipeline.text.messages import ContentError, texts_of

_MAX_MESSAGES = 65_536
_MESSAGE_FIELDS = {"role", "content", "name"}
_ROLES = ("system", "developer", "user", "assistant")


def _checked_messages(value: Any) -> Any:
    """Return the messages as a row of the offline job has them, the content of each as one string."""
    if not isinstance(value, list) or not value:
        raise wrong("messages", "expected a list of at least one message")
    if len(value) > _MAX_MESSAGES:
        raise wrong("messages", f"expected at most {_MAX_MESSAGES} messages, got {len(value)}")
    return [_checked_message(f"messages[{index}]", message) for index, message in enumerate(value)]


def _checked_message(where: str, message: Any) -> dict[str, str]:
    if not isinstance(message, dict):
        raise wrong(where, "expected an object with role and content")
    for name, value in message.items():
        if name not in _MESSAGE_FIELDS and value not in (None, [], ""):  # clients send answers back with empty fields
            raise unsupported(f"{where}.{shown_name(name)}")
    role = message.get("role")
    if role in ("tool", "function"):
        raise unsupported(f"{where}.role", "this server does not support tools")
    if role not in _ROLES:
        raise wrong(f"{where}.role", f"expected one of {', '.join(_ROLES)}")
    # Chat templates know no developer.
    checked = {"role": "system" if role == "developer" else str(role)}
    checked["content"] = _checked_content(f"{where}.content", message.get("content"))
    if (name := message.get("name")) is not None:
        if not isinstance(name, str) or not 1 <= len(name) <= 64:
            raise wrong(f"{where}.name", "expected a string of 1 to 64 characters")
        check_text(f"{where}.name", name)
        checked["name"] = name
    return checked


def _checked_content(where: str, content: Any) -> str:
    texts = []
    try:
        for where_text, text in texts_of(where, content):
            check_text(where_text, text)
            texts.append(text)
    except ContentError as error:
        raise (unsupported if error.is_unsupported else wrong)(error.where, error.reason) from error
    return "".join(texts)


class TextPart(Strict):
    """A text part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(Strict):
    """A message as a client may send it."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None


Messages = Annotated[list[dict[str, str]], PlainValidator(_checked_messages, json_schema_input_type=list[ChatMessage])]


@dataclass(frozen=True)
class Conversation:
    """A prompt that is made of messages by the chat template."""

    messages: list[dict[str, str]]
