"""Messages of a chat, as rows, requests and lines of batch files have them. They are checked, and never rewritten."""

from __future__ import annotations

import re
from collections.abc import Mapping
from json import JSONDecodeError
from typing import Any

from pipeline.errors import FieldError
from pipeline.requests.body import TEXT
from pipeline.requests.token_kinds import MESSAGES
from pipeline.text.json_values import check_json, parsed
from pipeline.text.tools.asked import check_name

_ROLE = re.compile(r"[\w .-]+")
_MAX_ID = 256  # characters of the id of a call
_TEXTS = ("name", "reasoning", "reasoning_content")  # fields that hold a text, where a message has them
_SAID_OTHERWISE = ("audio", "function_call", "refusal")  # of the API: they hold what no template would show


def check_messages(messages: Any) -> None:
    """Raise FieldError for messages that no chat template can be given.

    A role is any word, since it is the template that knows roles. A content is a string or a list of text parts; a
    message of the assistant with calls may have none. Fields that are null count as absent. Other fields may hold
    whatever JSON can say: the template gets them.
    """
    for index, message in enumerate(MESSAGES.read("messages", messages)):
        _check_message(f"messages[{index}]", message)


def _check_message(where: str, message: Any) -> None:
    if not isinstance(message, dict):
        raise FieldError(where, "expected an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):  # templates put it between the halves of a control token
        got = f"got {ascii(role)[:80]}"
        raise FieldError(f"{where}.role", f"expected a word, such as system, user, assistant or tool, {got}")
    check_json(where, message)
    for name in _TEXTS:
        TEXT.if_given(f"{where}.{name}", message.get(name))
    for name in _SAID_OTHERWISE:
        if message.get(name):
            raise FieldError(f"{where}.{name}", "it is not supported; leave it out", is_unsupported=True)
    calls = message.get("tool_calls")
    if calls and role != "assistant":
        reason = f"a message of the role {role!r} has no calls"
        raise FieldError(f"{where}.tool_calls", reason, is_unsupported=True)
    if calls is not None and calls != []:  # some servers write an empty list into every answer
        check_calls(f"{where}.tool_calls", calls)
    if role == "tool" and message.get("tool_call_id") is not None:
        check_id(f"{where}.tool_call_id", message["tool_call_id"])
    if message.get("content") is not None or not calls:
        _check_content(f"{where}.content", message.get("content"))


def _check_content(where: str, content: Any) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        raise FieldError(where, "expected a string, or a list of text parts")
    for index, part in enumerate(content):
        place = f"{where}[{index}]"
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise FieldError(place, 'expected an object with type "text" and a text')
        if part["type"] != "text":
            reason = f"{part['type']!a:.64} is not supported, only text parts are"
            raise FieldError(f"{place}.type", reason, is_unsupported=True)
        if not isinstance(part.get("text"), str):
            raise FieldError(f"{place}.text", "expected a string")


def check_calls(where: str, value: Any) -> None:
    """Raise FieldError for what is no list of calls.

    A call has its name and arguments in `function`, as in the OpenAI API, or itself, as some data sets write it.
    """
    if not isinstance(value, list) or not value:
        raise FieldError(where, "expected a list of at least one call")
    for index, call in enumerate(value):
        _check_call(f"{where}[{index}]", call)


def function_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the name and arguments of a call that was checked."""
    function = call.get("function")
    return call if function is None else function


def check_id(where: str, value: Any) -> None:
    """Raise FieldError for what is no id of a call."""
    if not isinstance(value, str) or not 1 <= len(value) <= _MAX_ID or not value.isprintable():
        raise FieldError(where, f"expected the id of a call, a string of 1 to {_MAX_ID} characters")


def _check_call(where: str, call: Any) -> None:
    if not isinstance(call, Mapping):
        raise FieldError(where, "expected an object with id, type and function")
    if call.get("id") is not None:
        check_id(f"{where}.id", call["id"])
    if call.get("type") not in ("function", None):
        raise FieldError(f"{where}.type", 'expected "function"')
    if call.get("function") is None and "name" in call:
        place = where
    else:
        place = f"{where}.function"
        if not isinstance(call.get("function"), Mapping):
            raise FieldError(place, "expected an object with name and arguments")
    function = function_of(call)
    check_name(f"{place}.name", function.get("name"))
    _check_arguments(f"{place}.arguments", function.get("arguments"))


def _check_arguments(where: str, value: Any) -> None:
    if value is None or value == "":
        return
    if isinstance(value, str):
        try:
            value = parsed(value)
        except ValueError as error:
            why = "" if isinstance(error, JSONDecodeError) else f": {error}"
            raise FieldError(where, f"expected JSON text of an object{why}") from None
    if not isinstance(value, dict):
        raise FieldError(where, "expected an object, or JSON text of one")
