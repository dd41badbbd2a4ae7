"""Calls in the messages of a chat, as earlier answers had them. They are checked, and never rewritten."""

from __future__ import annotations

from collections.abc import Mapping
from json import JSONDecodeError
from typing import Any

from pipeline.errors import FieldError
from pipeline.text.tools.asked import check_name
from pipeline.text.tools.json_ends import parsed

_MAX_ID = 256


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
