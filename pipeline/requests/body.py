"""Body: a JSON object with known fields, and the kinds of values that these may hold.

A whole float is an integer, as in JSON Schema (2.0 is 2); otherwise nothing is converted, and no boolean is a number.
Unknown and unsupported fields are refused by name.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from functools import cache, partial
from operator import ge, gt, le, lt
from typing import Any, ClassVar, TypeVar

from pipeline.errors import FieldError, shown_name

LARGEST = 2**31 - 1  # of any count or token id
Schema = dict[str, Any]
_LIMITS: Mapping[str, tuple[Callable[[Any, Any], bool], str, str]] = {
    "ge": (ge, "must be at least", "minimum"),
    "gt": (gt, "must be above", "exclusiveMinimum"),
    "le": (le, "must be at most", "maximum"),
    "lt": (lt, "must be below", "exclusiveMaximum"),
}
_Body = TypeVar("_Body", bound="Body")


@dataclass(frozen=True)
class Kind:
    """How the value at a path is read, with FieldError for one that is wrong, and the JSON Schema of the right ones."""

    read: Callable[[str, Any], Any]
    schema: Schema

    def if_given(self, where: str, value: Any) -> Any:
        """Return None for None, and what is read of any other value."""
        return None if value is None else self.read(where, value)


def anything(schema: Schema) -> Kind:
    """Return the kind of any value: what it holds is checked where it is used."""
    return Kind(lambda where, value: value, schema)


def number(**limits: float) -> Kind:
    """Return the kind of finite numbers within limits (`ge`, `gt`, `le`, `lt`)."""
    return _within("number", _finite, limits)


def integer(**limits: int) -> Kind:
    """Return the kind of integers within limits, to `LARGEST` unless they say otherwise."""
    return _within("integer", _whole, limits if "lt" in limits else {"le": LARGEST, **limits})


def _within(name: str, convert: Callable[[str, Any], Any], limits: Mapping[str, float]) -> Kind:
    def read(where: str, value: Any) -> Any:
        value = convert(where, value)
        for each, limit in limits.items():
            allows, words, _ = _LIMITS[each]
            if not allows(value, limit):
                raise FieldError(where, f"{words} {limit}")
        return value

    return Kind(read, {"type": name} | {_LIMITS[each][2]: limit for each, limit in limits.items()})


def _finite(where: str, value: Any) -> Any:
    if type(value) not in (int, float):
        raise FieldError(where, "expected a number")
    if type(value) is float and not math.isfinite(value):
        raise FieldError(where, "expected a finite number")
    return value


def _whole(where: str, value: Any) -> Any:
    value = int(value) if type(value) is float and value.is_integer() else value
    if type(value) is not int:
        raise FieldError(where, "expected an integer")
    return value


def one_of(*values: str | bool) -> Kind:
    """Return the kind of these values alone."""

    def read(where: str, value: Any) -> Any:
        if not any(type(value) is type(each) and value == each for each in values):
            raise FieldError(where, f"expected {' or '.join(json.dumps(each) for each in values)}")
        return value

    return Kind(read, {"enum": list(values)})


def _of(type_: type, noun: str, name: str) -> Kind:
    def read(where: str, value: Any) -> Any:
        if not isinstance(value, type_):
            raise FieldError(where, f"expected {noun}")
        return value

    return Kind(read, {"type": name})


def _nothing(where: str, value: Any) -> Any:
    raise unsupported(where)


BOOLEAN = Kind(one_of(True, False).read, {"type": "boolean"})
NOTHING = Kind(_nothing, {"type": "null"})  # of a field that the API knows, and that cannot be honoured
TEXT, LIST, OBJECT = _of(str, "a string", "string"), _of(list, "a list", "array"), _of(dict, "an object", "object")


def text(most: int, least: int = 0) -> Kind:
    """Return the kind of strings of `least` to `most` characters."""
    words = f"{least} to {most}" if least else f"at most {most}"

    def read(where: str, value: Any) -> Any:
        if not least <= len(TEXT.read(where, value)) <= most:
            raise FieldError(where, f"must have {words} characters, got {len(value)}")
        return value

    return Kind(read, {**TEXT.schema, "maxLength": most, **({"minLength": least} if least else {})})


def list_of(each: Kind, most: int | None = None) -> Kind:
    """Return the kind of lists of at most `most` values of a kind."""

    def read(where: str, value: Any) -> list[Any]:
        LIST.read(where, value)
        if most is not None and len(value) > most:
            raise FieldError(where, f"must have at most {most}, got {len(value)}")
        return [each.read(f"{where}[{index}]", entry) for index, entry in enumerate(value)]

    return Kind(read, {**LIST.schema, "items": each.schema, **({} if most is None else {"maxItems": most})})


def check_number(where: str, values: Sized, most: int, noun: str) -> None:
    """Raise FieldError if there are more than `most` values."""
    if len(values) > most:
        raise FieldError(where, f"expected at most {most} {noun}, got {len(values)}")


def labels(name: Kind, each: Kind, most: int) -> Kind:
    """Return the kind of objects with at most `most` names and values of these kinds."""

    def read(where: str, value: Any) -> dict[str, Any]:
        if len(OBJECT.read(where, value)) > most:
            raise FieldError(where, f"must have at most {most}, got more")
        for key, entry in value.items():
            path = f"{where}.{shown_name(key)}"
            name.read(path, key)
            each.read(path, entry)
        return dict(value)

    schema = {"additionalProperties": each.schema, "propertyNames": name.schema, "maxProperties": most}
    return Kind(read, {"type": "object", **schema})


def options(*required: str, **fields: Kind) -> Kind:
    """Return the kind of objects with these fields, each of which may be left out or null unless it is required."""

    def read(where: str, value: Any) -> dict[str, Any]:
        found = {}
        for name, entry in OBJECT.read(where, value).items():
            path = f"{where}.{shown_name(name)}"
            if name not in fields:
                raise FieldError(path, "there is no such field", code="unknown_parameter")
            if entry is not None:
                found[name] = fields[name].read(path, entry)
        for name in required:
            if name not in found:
                raise FieldError(f"{where}.{name}", "is required", code="missing_required_parameter")
        return found

    properties = {name: kind.schema if name in required else or_null(kind.schema) for name, kind in fields.items()}
    schema = {"properties": properties, "required": list(required), "additionalProperties": False}
    return Kind(read, {"type": "object", **schema})


def unsupported(where: str) -> FieldError:
    """Return the error for a field that the API knows and that cannot be honoured."""
    return FieldError(where, "this server does not support it; leave it out", is_unsupported=True)


def or_null(schema: Schema) -> Schema:
    """Return the schema of what may also be null."""
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}


@dataclass(frozen=True)
class FieldSpec:
    """A field as it is declared. null is no value, except for a field that is required."""

    kind: Kind
    help: str
    is_required: bool = False
    is_sampling: bool = False  # whether it has this name in the parameters of sampling
    is_of_row: bool = False  # whether a row of a batch has it beside its parameters of sampling and its chat
    in_batches: str = ""  # why a row of a batch cannot have it; empty: it can


def asks(kind: Kind, help: str, **more: Any) -> Any:
    """Declare a field of a body, which is None unless it is given."""
    return dataclasses.field(default=None, metadata={"spec": FieldSpec(kind, help, **more)})


sampled = partial(asks, is_sampling=True)


@dataclass(frozen=True, kw_only=True)
class Body:
    """What the body of a request asks for; its dataclass fields are the table of what it may hold."""

    # Fields that the API knows and that cannot be honoured, each with the values that ask for nothing.
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @classmethod
    @cache
    def table(cls) -> Mapping[str, FieldSpec]:
        """Return the fields that it may hold, by name."""
        specs = {field.name: field.metadata["spec"] for field in dataclasses.fields(cls)}
        return {name: spec for name, spec in specs.items() if name not in cls.unsupported}

    @classmethod
    def schema(cls) -> Schema:
        """Return the JSON Schema of such a body."""
        properties = {}
        for name, spec in cls.table().items():
            shown = spec.kind.schema if spec.is_required else or_null(spec.kind.schema)
            properties[name] = {**shown, "description": spec.help}
        required = [name for name, spec in cls.table().items() if spec.is_required]
        return {
            "title": cls.__name__,
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the values of those of these fields that are given."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def check(self) -> None:
        """Raise FieldError for fields that contradict each other."""


def read(kind: type[_Body], body: Mapping[str, Any]) -> _Body:
    """Return what a body asks for. Raises FieldError for the first field that is wrong."""
    table, values = kind.table(), {}
    for name, value in body.items():
        spec = table.get(name)
        if spec is None:
            if value is not None:
                _refuse_other(kind, name, value)
        elif value is not None or spec.is_required:
            values[name] = spec.kind.read(name, value)
    for name, spec in table.items():
        if spec.is_required and name not in values:
            raise FieldError(name, "is required", code="missing_required_parameter")
    asked = kind(**values)
    asked.check()
    return asked


def _refuse_other(kind: type[Body], name: str, value: Any) -> None:
    empty_values = kind.unsupported.get(name)
    if empty_values is None:
        raise FieldError(shown_name(name), "there is no such field", code="unknown_parameter")
    if not any(type(value) is type(empty) and value == empty for empty in empty_values):
        raise unsupported(name)
