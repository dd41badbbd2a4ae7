"""Messages of a chat: roles and text. Other contents that the OpenAI API knows are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from endpoint.http.errors import shown_name
from endpoint.requests.fields import Strict, check_text, field_error, unsupported, wrong
from pipeline.errors import FieldError
from pipeline.text.messages import ContentError, texts_of
from pipeline.text.tools.history import checked_calls, checked_id

_MAX_MESSAGES = 65_536
_MESSAGE_FIELDS = {"role", "content", "name"}
_OWN_FIELDS = {"assistant": {"tool_calls", "reasoning", "reasoning_content"}, "tool": {"tool_call_id"}}
_ROLES = ("system", "developer", "user", "assistant", "tool")


def _checked_messages(value: Any) -> Any:
    """Return the messages as a row of the offline job has them, the content of each as one string."""
    if not isinstance(value, list) or not value:
        raise wrong("messages", "expected a list of at least one message")
    if len(value) > _MAX_MESSAGES:
        raise wrong("messages", f"expected at most {_MAX_MESSAGES} messages, got {len(value)}")
    return [_checked_message(f"messages[{index}]", message) for index, message in enumerate(value)]


def _checked_message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise wrong(where, "expected an object with role and content")
    role = message.get("role")
    known = _MESSAGE_FIELDS | _OWN_FIELDS.get(role if isinstance(role, str) else "", set())
    for name, value in message.items():
        if name not in known and value not in (None, [], ""):  # clients send answers back with empty fields
            raise unsupported(f"{where}.{shown_name(name)}")
    if role == "function":
        raise unsupported(f"{where}.role", "this server does not support functions; use the role tool")
    if role not in _ROLES:
        raise wrong(f"{where}.role", f"expected one of {', '.join(_ROLES)}")
    # Chat templates know no developer.
    checked: dict[str, Any] = {"role": "system" if role == "developer" else str(role)}
    checked |= _checked_own(where, message, checked["role"])
    content = message.get("content")
    checked["content"] = "" if content is None and "tool_calls" in checked else _checked_content(where, content)
    if (name := message.get("name")) is not None:
        if not isinstance(name, str) or not 1 <= len(name) <= 64:
            raise wrong(f"{where}.name", "expected a string of 1 to 64 characters")
        check_text(f"{where}.name", name)
        checked["name"] = name
    return checked


def _checked_own(where: str, message: dict[str, Any], role: str) -> dict[str, Any]:
    """Return the fields that only messages of this role have."""
    checked: dict[str, Any] = {}
    try:
        if role == "assistant" and message.get("tool_calls"):
            checked["tool_calls"] = checked_calls(f"{where}.tool_calls", message["tool_calls"])
        if role == "tool":
            checked["tool_call_id"] = checked_id(f"{where}.tool_call_id", message.get("tool_call_id"))
    except FieldError as error:
        raise field_error(error) from error
    thought = message.get("reasoning") or message.get("reasoning_content") if role == "assistant" else None
    if thought is not None and thought != "":
        if not isinstance(thought, str):
            raise wrong(f"{where}.reasoning", "expected a string")
        check_text(f"{where}.reasoning", thought)
        checked["reasoning_content"] = thought  # templates read it by either name
    return checked


def _checked_content(where: str, content: Any) -> str:
    texts = []
    try:
        for where_text, text in texts_of(f"{where}.content", content):
            check_text(where_text, text)
            texts.append(text)
    except ContentError as error:
        raise (unsupported if error.is_unsupported else wrong)(error.where, error.reason) from error
    return "".join(texts)


class TextPart(Strict):
    """A text part of a message's content."""

    type: Literal["text"]
    text: str


class FunctionCall(Strict):
    """The function that a call names, and its arguments as JSON text."""

    name: str
    arguments: str


class Call(Strict):
    """A call of a function, in a message of the assistant."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(Strict):
    """A message as a client may send it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


Messages = Annotated[list[dict[str, Any]], PlainValidator(_checked_messages, json_schema_input_type=list[ChatMessage])]
