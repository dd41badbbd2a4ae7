"""The rows of a work unit: what to generate from, or what is wrong with a row. Rows in equals rows out."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from pipeline.errors import ErrorRow, RowError, Stage, storable, wrong_type
from pipeline.inputs.carried import carry, fit
from pipeline.inputs.files import InputFile, refuse_changed_file
from pipeline.inputs.options import InputOptions
from pipeline.inputs.records import Columns, TableRow, parse_json, read_parquet_rows, read_records
from pipeline.inputs.units import WorkUnit, prompt_columns
from pipeline.inputs.values import holds_bytes, whole
from pipeline.requests.texts import Conversation, custom_id, read_request
from pipeline.schema import TEXT
from pipeline.storage.location import Location

_Result = TypeVar("_Result")
# Fields of a row that say how its chat becomes a prompt, besides the messages, by their names in the API.
CHAT_FIELDS = tuple(name for name in Conversation.table() if name != "messages")
_MAY_BE_JSON = ("tools", "tool_choice", "chat_template_kwargs")  # as text, in CSV and in Parquet


@dataclass(frozen=True, kw_only=True)
class InputRow:
    """One row to generate from: it has a prompt or the messages of a chat; the other one is None.

    `row_number` counts from 0 in the file. `overrides` are the row's own sampling parameters, not checked yet.
    `columns` are the row's columns, for templates; the values in `carried` are copied to the output, those of a table
    as Arrow arrays of one value.
    """

    row_id: int
    row_number: int
    user_id: str | int | None
    prompt: str | list[int] | None  # a text, or the token ids of an OpenAI batch file
    messages: list[Any] | None
    overrides: dict[str, Any]
    columns: dict[str, Any]
    carried: dict[str, Any]
    asked: dict[str, Any] = field(default_factory=dict)  # beside these, by the names of the API: tools, best_of


@dataclass(frozen=True)
class RowPosition:
    """The position of a row in the run and in its file, which an error about the row names."""

    row_id: int
    file: str
    row_number: int

    def error(self, error: RowError, user_id: str | int | None) -> ErrorRow:
        """Return the error row of this row."""
        return ErrorRow(
            **vars(self),
            id=user_id,
            stage=error.stage,
            error_type=error.kind,
            message=error.message,
            attempt=0,
            text=error.text,
            num_tries=error.num_tries,
        )


def read_row(
    record: Columns | RowError,
    position: RowPosition,
    options: InputOptions,
    carried: Mapping[str, pa.DataType],
    id_type: pa.DataType = TEXT,
) -> InputRow | ErrorRow:
    """Return the row to generate from one record, or the error row that says what is wrong with it."""
    user_id = None
    try:
        if isinstance(record, RowError):
            raise record
        user_id = _user_id(record, options, id_type)
        _refuse_bytes(record, used_columns(options))
        prompt, messages, overrides, asked = _request(record, options)
        return InputRow(
            row_id=position.row_id,
            row_number=position.row_number,
            user_id=user_id,
            prompt=prompt,
            messages=messages,
            overrides=overrides,
            columns=record,
            carried=carry(record, carried, options),
            asked=asked,
        )
    except RowError as error:
        return position.error(error, user_id)


def result_or_error(
    stage: Stage, row: InputRow, file: str, compute: Callable[..., _Result], *arguments: Any
) -> _Result | ErrorRow:
    """Return `compute(*arguments)`, or the error row of `row` if that fails: no single row may stop a job.

    Errors of memory and disk are raised as they are: they are not about the row.
    """
    try:
        return compute(*arguments)
    except (MemoryError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - becomes the row's error
        failure = error if isinstance(error, RowError) else RowError(stage, str(error), type(error).__name__)
        return RowPosition(row.row_id, file, row.row_number).error(failure, row.user_id)


def read_unit(
    unit: WorkUnit, options: InputOptions, carried: Mapping[str, pa.DataType], id_type: pa.DataType = TEXT
) -> Iterator[InputRow | ErrorRow]:
    """Yield the rows of a unit in order, exactly `unit.num_rows` of them, whatever is wrong with one.

    `options` have a settled format (`resolve_options`); `carried` are the types of `carried.carried_types`, and
    `id_type` is that of `carried.id_type`. Raises ValueError if the file changed since the run was planned.
    """
    assert options.format != "auto", "resolve_options settles the format"
    refuse_changed_file(InputFile(unit.file, unit.file_size, unit.file_version))
    index = 0
    for record in _records(unit, options, carried):
        position = RowPosition(unit.row_id(index), unit.file, unit.row_start + index)
        yield read_row(record, position, options, carried, id_type)
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
    wanted = None if options.template_columns is None else (*used_columns(options), *carried)
    return read_parquet_rows(location, unit.row_start, unit.num_rows, wanted)


def used_columns(options: InputOptions) -> tuple[str, ...]:
    """Return the columns that a row may be read from, besides the carried ones."""
    named = (*prompt_columns(options), options.override_column, *CHAT_FIELDS, *(options.template_columns or ()))
    return (*named, options.id_column) if options.id_column else named


def _refuse_bytes(columns: Columns, names: Iterable[str]) -> None:
    """Raise RowError if one of these columns of a table holds bytes that are no text."""
    if not isinstance(columns, TableRow):  # the other formats have no bytes
        return
    for name in names:
        if holds_bytes(columns.get(name)):
            raise RowError(
                "read",
                f"column {name!r} has bytes that are not UTF-8, which are no text; write text into it, or use another "
                "column (carry_columns copies bytes as they are)",
                "UnicodeDecodeError",
            )


def _user_id(columns: Columns, options: InputOptions, id_type: pa.DataType) -> str | int | None:
    if options.format == "openai_batch":
        return custom_id(columns)
    if options.id_column is None:
        return None
    _refuse_bytes(columns, [options.id_column])
    value = whole(columns.get(options.id_column))
    if id_type != TEXT:
        what = f"id column {options.id_column!r}, which has integers in the rows before (write all ids as text)"
        number: int | None = fit(what, value, id_type)
        return number
    if value is None:
        return None
    return storable(value) if isinstance(value, str) else json.dumps(value)


def _request(
    columns: Columns, options: InputOptions
) -> tuple[str | list[int] | None, list[Any] | None, dict[str, Any], dict[str, Any]]:
    """Return (prompt, messages, overrides, what else is asked) of a row; one of the first two is None."""
    if options.format == "openai_batch":
        return read_request(columns)
    messages: list[Any] | None = structure(columns, options.messages_column, "read", list, "a list")
    prompt = columns.get(options.prompt_column) if options.template is None else options.template.fill(columns)
    if messages is not None and prompt not in (None, ""):
        raise RowError("read", "the row has a prompt and messages; leave one of them null")
    if messages is None and prompt is None:
        names = f"{options.prompt_column!r} and {options.messages_column!r}"
        found = f"the row has {sorted(columns)}; input.prompt_column names another one"
        raise RowError("read", f"the columns {names} are null or absent; {found}", "KeyError")
    if messages is None and not isinstance(prompt, str):
        raise wrong_type("read", f"column {options.prompt_column!r}", "a string", prompt)
    given = _given(structure(columns, options.override_column, "params", dict, "an object") or {})
    if messages is None:
        assert isinstance(prompt, str), "checked above"
        if not options.asks(prompt):
            return prompt, None, given, {}
        messages = [{"role": "user", "content": prompt}]
    own = {name: value for name, value in columns.items() if name not in (options.template_columns or ())}
    return None, messages, given, chat_fields(own)


def _given(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters that have a value, the whole numbers among them as integers."""
    numbers = {name: value if name == "structured" else whole(value) for name, value in overrides.items()}
    return {name: value for name, value in numbers.items() if value is not None}


def structure(columns: Columns, name: str, stage: Stage, type_: type, noun: str) -> Any:
    """Return the structure in a cell, or None. It may be JSON text, where the format has no structures.

    Raises RowError if it is no `type_`, whose `noun` the message has.
    """
    value = columns.get(name)
    if isinstance(value, str):
        wanted = f"; expected {noun}, or JSON text of one"
        value = _parsed(f"column {name!r}", value, stage, wanted) if value.strip() else None
    if value is not None and not isinstance(value, type_):
        raise wrong_type(stage, f"column {name!r}", noun, value)
    return value


def chat_fields(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are given, of the right type; what they hold is checked where a prompt is made.

    Raises RowError (stage "template").
    """
    found: dict[str, Any] = {}
    for name in CHAT_FIELDS:
        where, value = f"column {name}", columns.get(name)
        if name in _MAY_BE_JSON and isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
            value = _parsed(where, value, "template")
        if value is None or value == "":
            continue
        if name == "tools" and not isinstance(value, list):
            raise wrong_type("template", where, "a list", value)
        found[name] = Conversation.table()[name].kind.read(where, value)
    return found


def _parsed(where: str, text: str, stage: Stage, wanted: str = "") -> Any:
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        raise RowError(stage, f"{where}: not JSON: {error}{wanted}", type(error).__name__) from error
