"""Messages of a chat: roles and text. Other contents that the OpenAI API knows are refused by name."""

from __future__ import annotations

from typing import Any

from pipeline.errors import FieldError, shown_name
from pipeline.requests.kinds import unsupported
from pipeline.text.messages import ContentError, texts_of
from pipeline.text.tools.history import checked_calls, checked_id

_MESSAGE_FIELDS = {"role", "content", "name"}
_OWN_FIELDS = {"assistant": {"tool_calls", "reasoning", "reasoning_content"}, "tool": {"tool_call_id"}}
_ROLES = ("system", "developer", "user", "assistant", "tool")


def checked_messages(value: Any) -> Any:
    """Return the messages as a row of the offline job has them, the content of each as one string."""
    return [_checked_message(f"messages[{index}]", message) for index, message in enumerate(value)]


def _checked_message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise FieldError(where, "expected an object with role and content")
    role = message.get("role")
    known = _MESSAGE_FIELDS | _OWN_FIELDS.get(role if isinstance(role, str) else "", set())
    for name, value in message.items():
        if name not in known and value not in (None, [], ""):  # clients send answers back with empty fields
            raise unsupported(f"{where}.{shown_name(name)}")
    if role == "function":
        reason = "this server does not support functions; use the role tool"
        raise FieldError(f"{where}.role", reason, is_unsupported=True)
    if role not in _ROLES:
        raise FieldError(f"{where}.role", f"expected one of {', '.join(_ROLES)}")
    # Chat templates know no developer.
    checked: dict[str, Any] = {"role": "system" if role == "developer" else str(role)}
    checked |= _checked_own(where, message, checked["role"])
    content = message.get("content")
    checked["content"] = "" if content is None and "tool_calls" in checked else _checked_content(where, content)
    if (name := message.get("name")) is not None:
        if not isinstance(name, str) or not 1 <= len(name) <= 64:
            raise FieldError(f"{where}.name", "expected a string of 1 to 64 characters")
        checked["name"] = name
    return checked


def _checked_own(where: str, message: dict[str, Any], role: str) -> dict[str, Any]:
    """Return the fields that only messages of this role have."""
    checked: dict[str, Any] = {}
    if role == "assistant" and message.get("tool_calls"):
        checked["tool_calls"] = checked_calls(f"{where}.tool_calls", message["tool_calls"])
    if role == "tool":
        checked["tool_call_id"] = checked_id(f"{where}.tool_call_id", message.get("tool_call_id"))
    thought = message.get("reasoning") or message.get("reasoning_content") if role == "assistant" else None
    if thought is not None and thought != "":
        if not isinstance(thought, str):
            raise FieldError(f"{where}.reasoning", "expected a string")
        checked["reasoning_content"] = thought  # templates read it by either name
    return checked


def _checked_content(where: str, content: Any) -> str:
    texts = []
    try:
        for _, text in texts_of(f"{where}.content", content):
            texts.append(text)
    except ContentError as error:
        raise FieldError(error.where, error.reason, is_unsupported=error.is_unsupported) from error
    return "".join(texts)
