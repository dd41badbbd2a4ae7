"""Kinds of values that a field of a request may hold.

A whole float is an integer, as in JSON Schema (2.0 is 2); otherwise nothing is converted, and no boolean is a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Any

from pipeline.errors import FieldError, shown_name

LARGEST = 2**31 - 1  # of any count or token id
Schema = dict[str, Any]
_LIMITS: Mapping[str, tuple[Callable[[Any, Any], bool], str, str]] = {
    "ge": (ge, "must be at least", "minimum"),
    "gt": (gt, "must be above", "exclusiveMinimum"),
    "le": (le, "must be at most", "maximum"),
    "lt": (lt, "must be below", "exclusiveMaximum"),
}


@dataclass(frozen=True)
class Kind:
    """How the value at a path is read, with FieldError for one that is wrong, and the JSON Schema of the right ones."""

    read: Callable[[str, Any], Any]
    schema: Schema


def anything(schema: Schema) -> Kind:
    """Return the kind of any value: what it holds is checked where it is used."""
    return Kind(lambda where, value: value, schema)


def number(**limits: float) -> Kind:
    """Return the kind of finite numbers within limits (`ge`, `gt`, `le`, `lt`)."""

    def read(where: str, value: Any) -> float:
        if type(value) not in (int, float):
            raise FieldError(where, "expected a number")
        if type(value) is float and not math.isfinite(value):
            raise FieldError(where, "expected a finite number")
        return _within(where, value, limits)

    return Kind(read, {"type": "number"} | {_LIMITS[name][2]: limit for name, limit in limits.items()})


def integer(**limits: int) -> Kind:
    """Return the kind of integers within limits, to `LARGEST` unless they say otherwise."""
    limits = limits if "lt" in limits else {"le": LARGEST, **limits}

    def read(where: str, value: Any) -> int:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise FieldError(where, "expected an integer")
        return int(_within(where, value, limits))

    return Kind(read, {"type": "integer"} | {_LIMITS[name][2]: limit for name, limit in limits.items()})


def _within(where: str, value: float, limits: Mapping[str, float]) -> float:
    for name, limit in limits.items():
        allows, words, _ = _LIMITS[name]
        if not allows(value, limit):
            raise FieldError(where, f"{words} {limit}")
    return value


def _boolean(where: str, value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise FieldError(where, "expected true or false")


def _false(where: str, value: Any) -> bool:
    if value is False:
        return False
    raise FieldError(where, "expected False")


def _nothing(where: str, value: Any) -> Any:
    raise unsupported(where)


BOOLEAN = Kind(_boolean, {"type": "boolean"})
FALSE = Kind(_false, {"const": False})
NOTHING = Kind(_nothing, {"type": "null"})  # of a field that the API knows, and that cannot be honoured


def text(most: int | None = None) -> Kind:
    """Return the kind of strings, of at most `most` characters."""

    def read(where: str, value: Any) -> str:
        if not isinstance(value, str):
            raise FieldError(where, "expected a string")
        if most is not None and len(value) > most:
            raise FieldError(where, f"must have at most {most} characters")
        return value

    return Kind(read, {"type": "string"} if most is None else {"type": "string", "maxLength": most})


TEXT = text()


def list_of(each: Kind, most: int | None = None) -> Kind:
    """Return the kind of lists of at most `most` values of a kind."""

    def read(where: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise FieldError(where, "expected a list")
        if most is not None and len(value) > most:
            raise FieldError(where, f"must have at most {most}, got {len(value)}")
        return [each.read(f"{where}[{index}]", entry) for index, entry in enumerate(value)]

    return Kind(read, {"type": "array", "items": each.schema} | ({} if most is None else {"maxItems": most}))


def _object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FieldError(where, "expected an object")
    return value


OBJECT = Kind(_object, {"type": "object"})


def labels(name: Kind, each: Kind, most: int) -> Kind:
    """Return the kind of objects with at most `most` names and values of these kinds."""

    def read(where: str, value: Any) -> dict[str, Any]:
        if len(_object(where, value)) > most:
            raise FieldError(where, f"must have at most {most}, got more")
        for key, entry in value.items():
            path = f"{where}.{shown_name(key)}"
            name.read(path, key)
            each.read(path, entry)
        return dict(value)

    schema = {"additionalProperties": each.schema, "propertyNames": name.schema, "maxProperties": most}
    return Kind(read, {"type": "object", **schema})


def options(**fields: Kind) -> Kind:
    """Return the kind of objects with these fields, each of which may be left out or null."""

    def read(where: str, value: Any) -> dict[str, Any]:
        found = {}
        for name, entry in _object(where, value).items():
            path = f"{where}.{shown_name(name)}"
            if name not in fields:
                raise FieldError(path, "there is no such field", code="unknown_parameter")
            if entry is not None:
                found[name] = fields[name].read(path, entry)
        return found

    properties = {name: or_null(kind.schema) for name, kind in fields.items()}
    return Kind(read, {"type": "object", "properties": properties, "additionalProperties": False})


def unsupported(where: str) -> FieldError:
    """Return the error for a field that the API knows and that cannot be honoured."""
    return FieldError(where, "this server does not support it; leave it out", is_unsupported=True)


def or_null(schema: Schema) -> Schema:
    """Return the schema of what may also be null."""
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}
