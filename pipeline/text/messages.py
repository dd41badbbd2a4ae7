"""Messages of a chat. A content is a string, or text parts as the OpenAI API has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pipeline.errors import FieldError, RowError, wrong_type
from pipeline.text.tools.history import checked_calls, checked_id

_ROLE = re.compile(r"[\w .-]+")


class ContentError(Exception):
    """A content that is no text. `where` is the place ("messages[0].content[1].type"), `reason` what is wrong there.

    `is_unsupported` says that the API knows what is there, and Dray cannot use it.
    """

    def __init__(self, where: str, reason: str, *, is_unsupported: bool = False) -> None:
        super().__init__(f"{where}: {reason}")
        self.where, self.reason, self.is_unsupported = where, reason, is_unsupported


def texts_of(where: str, content: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts of a content, each with its place: the string itself, or those of its text parts.

    A field of a part that is null is no field, because a Parquet struct has every field. Raises ContentError.
    """
    if isinstance(content, str):
        yield where, content
        return
    if not isinstance(content, list) or not content:
        raise ContentError(where, "expected a string, or a list of text parts")
    for index, part in enumerate(content):
        place = f"{where}[{index}]"
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ContentError(place, 'expected an object with type "text" and a text')
        if part["type"] != "text":
            reason = f"{part['type']!a:.64} is not supported, only text parts are"
            raise ContentError(f"{place}.type", reason, is_unsupported=True)
        if not isinstance(part.get("text"), str):
            raise ContentError(f"{place}.text", "expected a string")
        for name, value in part.items():
            if name not in ("type", "text") and value is not None:
                where_field = f"{place}.{ascii(name)[1:-1]:.64}"
                raise ContentError(where_field, "it is not supported; leave it out", is_unsupported=True)
        yield f"{place}.text", part["text"]


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """Return the messages of a row, the content of each as one string. Raises RowError.

    Keys that are null are left out, because a Parquet struct has every key.
    """
    if not isinstance(messages, list):
        raise wrong_type("template", "messages", "a list", messages)
    if not messages:
        raise RowError("template", "messages: the list is empty")
    return [_checked_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _checked_message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise wrong_type("template", where, "an object", message)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise RowError("template", f"{where}.role: expected a string, got {role!r}")
    if not _ROLE.fullmatch(role):  # templates put it between the halves of a control token
        raise RowError("template", f"{where}.role: expected a word, got {role[:80]!r}")
    own = {key: value for key, value in message.items() if value is not None}
    if own.get("tool_calls") == [] or role != "assistant":  # answers have an empty list
        calls = own.pop("tool_calls", None)
        if calls:
            raise FieldError(f"{where}.tool_calls", f"a message of the role {role!r} has no calls")
    if "tool_calls" in own:
        own["tool_calls"] = checked_calls(f"{where}.tool_calls", own["tool_calls"])
        content = "" if content is None else content
    if role == "tool" and "tool_call_id" in own:
        checked_id(f"{where}.tool_call_id", own["tool_call_id"])
    if not isinstance(content, str | list):
        raise wrong_type("template", f"{where}.content", "a string or a list of text parts", content)
    try:
        text = "".join(text for _, text in texts_of(f"{where}.content", content))
    except ContentError as error:
        raise RowError("template", str(error)) from error
    return own | {"content": text}
