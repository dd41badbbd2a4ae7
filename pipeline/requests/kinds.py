"""Kinds of values that a field of a request may hold: what is read of a JSON value, what is wrong with it, its schema.

A whole float is an integer, as in JSON Schema (2.0 is 2); otherwise nothing is converted, and no boolean is a number.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import FieldError, shown_name

LARGEST = 2**31 - 1  # of any count or token id
Schema = dict[str, Any]


class Kind(ABC):
    """A kind of values; null is read by a field that needs a value, and is no value elsewhere."""

    @abstractmethod
    def read(self, where: str, value: Any) -> Any:
        """Return the value of the field at the path `where`. Raises FieldError."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The JSON Schema of the kind."""


@dataclass(frozen=True)
class Anything(Kind):
    """Any value: what it holds is checked where it is used."""

    shown: Schema

    def read(self, where: str, value: Any) -> Any:
        return value

    @property
    def schema(self) -> Schema:
        return self.shown


@dataclass(frozen=True)
class Boolean(Kind):
    """True or false."""

    def read(self, where: str, value: Any) -> bool:
        if value is True or value is False:
            return bool(value)
        raise FieldError(where, "expected true or false")

    @property
    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, kw_only=True)
class Number(Kind):
    """A finite number between two limits."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def read(self, where: str, value: Any) -> float:
        if type(value) not in (int, float):
            raise FieldError(where, "expected a number")
        if type(value) is float and not math.isfinite(value):
            raise FieldError(where, "expected a finite number")
        return self._limited(where, value)

    def _limited(self, where: str, value: float) -> float:
        if self.ge is not None and value < self.ge:
            raise FieldError(where, f"must be at least {self.ge}")
        if self.gt is not None and value <= self.gt:
            raise FieldError(where, f"must be above {self.gt}")
        if self.le is not None and value > self.le:
            raise FieldError(where, f"must be at most {self.le}")
        if self.lt is not None and value >= self.lt:
            raise FieldError(where, f"must be below {self.lt}")
        return value

    @property
    def schema(self) -> Schema:
        names = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
        limits = {shown: getattr(self, name) for name, shown in names.items()}
        return {"type": self._type, **{name: limit for name, limit in limits.items() if limit is not None}}

    @property
    def _type(self) -> str:
        return "number"


@dataclass(frozen=True, kw_only=True)
class Integer(Number):
    """An integer between two limits."""

    le: float | None = LARGEST

    def read(self, where: str, value: Any) -> int:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise FieldError(where, "expected an integer")
        return int(self._limited(where, value))

    @property
    def _type(self) -> str:
        return "integer"


@dataclass(frozen=True)
class Text(Kind):
    """A string, of at most `most` characters."""

    most: int | None = None

    def read(self, where: str, value: Any) -> str:
        if not isinstance(value, str):
            raise FieldError(where, "expected a string")
        if self.most is not None and len(value) > self.most:
            raise FieldError(where, f"must have at most {self.most} characters")
        return value

    @property
    def schema(self) -> Schema:
        return {"type": "string"} if self.most is None else {"type": "string", "maxLength": self.most}


@dataclass(frozen=True)
class Constant(Kind):
    """One value, which asks for nothing."""

    value: Any

    def read(self, where: str, value: Any) -> Any:
        if type(value) is not type(self.value) or value != self.value:
            raise FieldError(where, f"expected {self.value}")
        return value

    @property
    def schema(self) -> Schema:
        return {"const": self.value}


@dataclass(frozen=True)
class Nothing(Kind):
    """No value: the API knows the field, and it cannot be honoured."""

    def read(self, where: str, value: Any) -> Any:
        raise unsupported(where)

    @property
    def schema(self) -> Schema:
        return {"type": "null"}


@dataclass(frozen=True)
class ListOf(Kind):
    """A list of values of a kind."""

    each: Kind
    most: int | None = None

    def read(self, where: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise FieldError(where, "expected a list")
        if self.most is not None and len(value) > self.most:
            raise FieldError(where, f"must have at most {self.most}, got {len(value)}")
        return [self.each.read(f"{where}[{index}]", entry) for index, entry in enumerate(value)]

    @property
    def schema(self) -> Schema:
        most = {} if self.most is None else {"maxItems": self.most}
        return {"type": "array", "items": self.each.schema, **most}


@dataclass(frozen=True)
class ObjectOf(Kind):
    """An object with any names, or with names and values of a kind, at most `most` of them."""

    each: Kind | None = None
    name: Text = Text()
    most: int | None = None

    def read(self, where: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise FieldError(where, "expected an object")
        if self.most is not None and len(value) > self.most:
            raise FieldError(where, f"must have at most {self.most}, got more")
        if self.each is not None:
            for name, entry in value.items():
                path = f"{where}.{shown_name(name)}"
                self.name.read(path, name)
                self.each.read(path, entry)
        return value

    @property
    def schema(self) -> Schema:
        inner = {} if self.each is None else {"additionalProperties": self.each.schema}
        most = {} if self.most is None else {"maxProperties": self.most}
        names = {} if self.name.most is None else {"propertyNames": self.name.schema}
        return {"type": "object", **inner, **most, **names}


@dataclass(frozen=True)
class Options(Kind):
    """An object with these fields, each of which may be left out or null."""

    fields: Mapping[str, Kind]

    def read(self, where: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise FieldError(where, "expected an object")
        found = {}
        for name, entry in value.items():
            path = f"{where}.{shown_name(name)}"
            if name not in self.fields:
                raise FieldError(path, "there is no such field", code="unknown_parameter")
            if entry is not None:
                found[name] = self.fields[name].read(path, entry)
        return found

    @property
    def schema(self) -> Schema:
        properties = {name: or_null(kind.schema) for name, kind in self.fields.items()}
        return {"type": "object", "properties": properties, "additionalProperties": False}


def unsupported(where: str) -> FieldError:
    """Return the error for a field that the API knows and that cannot be honoured."""
    return FieldError(where, "this server does not support it; leave it out", is_unsupported=True)


def or_null(schema: Schema) -> Schema:
    """Return the schema of what may also be null."""
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}
