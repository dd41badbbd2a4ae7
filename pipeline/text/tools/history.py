"""Calls in the messages of a chat, as earlier answers had them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import FieldError
from pipeline.text.tools.asked import checked_name
from pipeline.text.tools.json_ends import parsed

_MAX_ID = 256


def checked_calls(where: str, value: Any) -> list[dict[str, Any]]:
    """Return the calls of a message as chat templates expect them, the arguments as objects. Raises FieldError.

    Fields that are null are left out, because a Parquet struct has every field.
    """
    if not isinstance(value, list) or not value:
        raise FieldError(where, "expected a list of at least one call")
    return [_checked_call(f"{where}[{index}]", call) for index, call in enumerate(value)]


def _checked_call(where: str, call: Any) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise FieldError(where, "expected an object with id, type and function")
    _refuse_unknown(where, call, {"id", "type", "function", "index"})
    checked: dict[str, Any] = {}
    if call.get("id") is not None:
        checked["id"] = checked_id(f"{where}.id", call["id"])
    if call.get("type", "function") not in ("function", None):
        raise FieldError(f"{where}.type", 'expected "function"')
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise FieldError(f"{where}.function", "expected an object with name and arguments")
    _refuse_unknown(f"{where}.function", function, {"name", "arguments"})
    name = checked_name(f"{where}.function.name", function.get("name"))
    arguments = _arguments(f"{where}.function.arguments", function.get("arguments"))
    return {**checked, "type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(where: str, value: Any) -> dict[str, Any]:
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = parsed(value)
        except ValueError:
            raise FieldError(where, "expected JSON text of an object") from None
    if not isinstance(value, dict):
        raise FieldError(where, "expected an object, or JSON text of one")
    return value


def checked_id(where: str, value: Any) -> str:
    """Return the id of a call. Raises FieldError."""
    if not isinstance(value, str) or not 1 <= len(value) <= _MAX_ID or not value.isprintable():
        raise FieldError(where, f"expected the id of a call, a string of 1 to {_MAX_ID} characters")
    return value


def _refuse_unknown(where: str, value: Mapping[str, Any], known: set[str]) -> None:
    for name, each in value.items():
        if name not in known and each is not None:
            raise FieldError(
                f"{where}.{ascii(name)[1:-1]:.64}", "there is no such field in a call", is_unsupported=True
            )
