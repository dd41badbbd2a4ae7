"""Body: a JSON object with known fields, and how it is read. Unknown and unsupported fields are refused by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, TypeVar

from pipeline.errors import FieldError, shown_name
from pipeline.requests.kinds import Kind, Schema, or_null, unsupported

_Body = TypeVar("_Body", bound="Body")


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
