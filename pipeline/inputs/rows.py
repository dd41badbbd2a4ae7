"""The rows of a work unit: what to generate from, or what is wrong with a row. Rows in equals rows out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from pipeline.errors import ErrorRow, RowError, Stage, only_this_row, storable
from pipeline.inputs.carried import carry
from pipeline.inputs.files import InputFile, refuse_changed_file
from pipeline.inputs.openai_batch import custom_id, read_request
from pipeline.inputs.options import InputOptions
from pipeline.inputs.parquet_rows import read_parquet_rows
from pipeline.inputs.records import Columns, parse_json, read_records
from pipeline.inputs.units import WorkUnit, prompt_columns
from pipeline.storage.location import Location

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class InputRow:
    """One row to generate from: it has a prompt or the messages of a chat; the other one is None.

    `row_number` counts from 0 in the file. `overrides` are the row's own sampling parameters, not checked yet.
    `columns` are the row's columns, for templates; the values in `carried` are copied to the output.
    """

    row_id: int
    row_number: int
    user_id: str | None
    prompt: str | None
    messages: list[Any] | None
    overrides: dict[str, Any]
    columns: dict[str, Any]
    carried: dict[str, Any]


@dataclass(frozen=True)
class RowPosition:
    """The position of a row in the run and in its file, which an error about the row names."""

    row_id: int
    file: str
    row_number: int
    attempt: int = 0

    def error(self, error: RowError, user_id: str | None) -> ErrorRow:
        """Return the error row of this row."""
        return ErrorRow(
            row_id=self.row_id,
            id=user_id,
            file=self.file,
            row_number=self.row_number,
            stage=error.stage,
            error_type=error.kind,
            message=error.message,
            attempt=self.attempt,
        )


def read_row(
    record: Columns | RowError, position: RowPosition, options: InputOptions, carried: Mapping[str, pa.DataType]
) -> InputRow | ErrorRow:
    """Return the row to generate from one record, or the error row that says what is wrong with it."""
    user_id = None
    try:
        if isinstance(record, RowError):
            raise record
        user_id = _user_id(record, options)
        prompt, messages, overrides = _request(record, options)
        fitted = carry(record, carried)
    except RowError as error:
        return position.error(error, user_id)
    return InputRow(
        row_id=position.row_id,
        row_number=position.row_number,
        user_id=user_id,
        prompt=prompt,
        messages=messages,
        overrides=overrides,
        columns=record,
        carried=fitted,
    )


def result_or_error(
    stage: Stage, row: InputRow, file: str, compute: Callable[..., _Result], *arguments: Any
) -> _Result | ErrorRow:
    """Return `compute(*arguments)`, or the error row of `row` if its content makes that fail."""
    try:
        with only_this_row(stage):
            return compute(*arguments)
    except RowError as error:
        return RowPosition(row.row_id, file, row.row_number).error(error, row.user_id)


def read_unit(
    unit: WorkUnit, options: InputOptions, carried: Mapping[str, pa.DataType], attempt: int = 0
) -> Iterator[InputRow | ErrorRow]:
    """Yield the rows of a unit in order, exactly `unit.num_rows` of them, whatever is wrong with one.

    `options` have a settled format (`resolve_options`); `carried` are the types of `carried.carried_types`. Raises
    ValueError if the file changed since the run was planned.
    """
    assert options.format != "auto", "resolve_options settles the format"
    refuse_changed_file(InputFile(unit.file, unit.file_size, unit.file_version))
    index = 0
    for record in _records(unit, options, carried):
        position = RowPosition(unit.row_id(index), unit.file, unit.row_start + index, attempt)
        yield read_row(record, position, options, carried)
        index += 1
    if index != unit.num_rows:
        raise ValueError(
            f"{unit.file}: the input changed since the run was planned: unit {unit.unit_id} "
            f"had {unit.num_rows} rows and has {index}; restore the file or use a new output directory"
        )


def _records(unit: WorkUnit, options: InputOptions, carried: Mapping[str, pa.DataType]) -> Iterator[Columns | RowError]:
    location = Location.parse(unit.file)
    if options.format != "parquet":
        assert unit.byte_start is not None
        return read_records(location, options, unit.byte_start, unit.byte_end)
    wanted = None
    if options.template_columns is not None:
        wanted = (*options.template_columns, *prompt_columns(options), *carried, options.override_column)
        wanted += (options.id_column,) if options.id_column else ()
    return read_parquet_rows(location, unit.row_start, unit.num_rows, wanted)


def _user_id(columns: Columns, options: InputOptions) -> str | None:
    if options.format == "openai_batch":
        return custom_id(columns)
    value = columns.get(options.id_column) if options.id_column else None
    if value is None:
        return None
    return storable(value) if isinstance(value, str) else json.dumps(value, default=str)


def _request(columns: Columns, options: InputOptions) -> tuple[str | None, list[Any] | None, dict[str, Any]]:
    """Return (prompt, messages, overrides) of a row; one of the first two is None."""
    if options.format == "openai_batch":
        request = read_request(columns)
        return request.prompt, request.messages, request.overrides
    messages = _messages(columns, options)
    prompt = columns.get(options.prompt_column)
    if options.template is not None:
        prompt = options.template.fill(columns)
    if messages is not None and prompt not in (None, ""):
        raise RowError("read", "the row has a prompt and messages; leave one of them null")
    if messages is None and prompt is None:
        names = f"{options.prompt_column!r} and {options.messages_column!r}"
        raise RowError("read", f"the columns {names} are null or absent; the row has {sorted(columns)}", "KeyError")
    if messages is None and not isinstance(prompt, str):
        kind = type(prompt).__name__
        raise RowError("read", f"column {options.prompt_column!r}: expected a string, got {kind}", "TypeError")
    return (None if messages is not None else prompt), messages, _overrides(columns, options)


def _messages(columns: Columns, options: InputOptions) -> list[Any] | None:
    value = _from_json(columns.get(options.messages_column), options.messages_column, "read")
    if value is not None and not isinstance(value, list):
        kind = type(value).__name__
        raise RowError("read", f"column {options.messages_column!r}: expected a list, got {kind}", "TypeError")
    return value


def _overrides(columns: Columns, options: InputOptions) -> dict[str, Any]:
    value = _from_json(columns.get(options.override_column), options.override_column, "params")
    if value is None:
        return {}
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise RowError("params", f"column {options.override_column!r}: expected an object, got {kind}", "TypeError")
    return {name: setting for name, setting in value.items() if setting is not None}  # a Parquet struct has them all


def _from_json(value: Any, column: str, stage: Any) -> Any:
    """Return the structure in a cell, which may be JSON text where the format has no structures."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return parse_json(value)
    except (ValueError, RecursionError) as error:
        raise RowError(stage, f"column {column!r}: not JSON: {error}", type(error).__name__) from error
