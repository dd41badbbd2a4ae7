"""The user's own columns in the output: carried ones, and `id`. Each has one Arrow type for the whole run.

Values of a table's carried columns never become Python objects, which have no nanoseconds, but stay Arrow's.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import pyarrow as pa

from pipeline.errors import RowError
from pipeline.inputs.files import InputFile, refuse_unreadable
from pipeline.inputs.options import InputOptions
from pipeline.inputs.records import Columns, TableRow, file_columns, parquet_schema, read_records
from pipeline.schema import TEXT, ColumnSet, generations_schema
from pipeline.storage.location import Location

_NUM_SAMPLED_ROWS = 1000
JSON_TEXT = pa.json_()  # a string column whose text is JSON: it can hold any value


def carried_types(
    files: Sequence[InputFile], options: InputOptions, column_sets: Sequence[ColumnSet] = ()
) -> dict[str, pa.DataType]:
    """Return the type of every carried column: decided once, when the run is planned, and kept in run.json.

    Parquet columns keep the type that they have in the files, which must agree. CSV columns are strings, because a cell
    is text ("007" is not 7). A column of JSON lines gets the type that fits its values in the first 1000 rows: bool,
    int64, float64 or string, or else JSON text. Where no row can be read, all are strings. Raises ValueError for a
    column that is not in the input, has the name of one of Dray's own, or has different types in two Parquet files.
    """
    if not options.carry_columns:
        return {}
    found = _column_types(files, options)
    names = options.carried_of(found)
    if found and (missing := sorted(set(names) - set(found))):
        raise ValueError(f"input.carry_columns: {missing} are not in the input: {files[0].path} has {', '.join(found)}")
    carried = {name: _only_type(name, found[name]) if found else pa.string() for name in names}
    generations_schema(carried, column_sets=column_sets)  # refuses the names of Dray's own columns
    return carried


def id_type(files: Sequence[InputFile], options: InputOptions) -> pa.DataType:
    """Return the type of `id`: int64 where the rows' own ids are integers that fit, else string.

    Ids of JSON lines are integers if those of the first 1000 rows are. It is kept in run.json as the types of carried
    columns are. Raises ValueError if none of these rows has the column.
    """
    if options.id_column is None or options.format not in ("parquet", "jsonl"):  # the others have text alone
        return TEXT
    if (found := _column_types(files, options)) and options.id_column not in found:
        raise ValueError(
            f"input.id_column: {options.id_column!r} is not in the input: {files[0].path} has {', '.join(found)}"
        )
    types = found.get(options.id_column, {}).keys() - {pa.null()}
    return pa.int64() if types and all(pa.types.is_integer(t) and t != pa.uint64() for t in types) else TEXT


def columns_of(files: Sequence[InputFile], options: InputOptions) -> set[str]:
    """Return the names of the input's columns; of JSON lines those of the first 1000 rows. Empty: none can be read."""
    return set(_column_types(files, options))


def carry(columns: Columns, types: Mapping[str, pa.DataType], options: InputOptions) -> dict[str, Any]:
    """Return the carried values of a row, each fit for the type of its column; absent ones are None.

    Raises RowError (stage "read") for a value that does not fit, or that has no column in the output.
    """
    if late := [name for name in options.carried_of(columns) if name not in types and columns.get(name) is not None]:
        raise RowError(
            "read",
            f"column {late[0]!r} is in none of the first {_NUM_SAMPLED_ROWS} rows, where carry_columns 'all' looks for "
            "the columns to carry; name the ones that you want",
            "KeyError",
        )
    if isinstance(columns, TableRow):
        return {name: _cell(columns, name, type_) for name, type_ in types.items()}
    return {name: fit(f"carried column {name!r}", columns.get(name), type_) for name, type_ in types.items()}


def _cell(row: TableRow, name: str, type_: pa.DataType) -> pa.Array[Any] | None:
    """Return the value of a table's column as an array of one; None if the row's file has no such column."""
    if name not in row:
        return None
    cell = row.cell(name)
    try:
        return cell if cell.type == type_ else cell.cast(type_)
    except pa.ArrowException as error:
        raise RowError("read", f"carried column {name!r}: expected {type_}, got {cell.type}", "TypeError") from error


def fit(what: str, value: Any, type_: pa.DataType) -> Any:
    """Return a value that a column of this type can hold. Raises RowError, naming `what` it is, if it does not fit."""
    if value is None:
        return None
    if type_ == JSON_TEXT:
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError) as error:
            raise RowError("read", f"{what}: no JSON text: {error}", type(error).__name__) from error
    try:
        scalar = pa.scalar(value, type=type_)
        # Arrow silently truncates 1.5 to an integer and takes true for 1.0.
        loses = (pa.types.is_integer(type_) and scalar.as_py() != value) or (
            isinstance(value, bool) and not pa.types.is_boolean(type_)
        )
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        loses = True
    if loses:
        raise RowError("read", f"{what}: expected {type_}, got {value!r:.80}", "TypeError")
    return value


def types_to_dict(types: Mapping[str, pa.DataType]) -> dict[str, dict[str, str]]:
    """Write the types for run.json, as people read them and as Arrow reads them back."""
    return {
        name: {
            "type": str(type_),
            "arrow": base64.b64encode(pa.schema([pa.field(name, type_)]).serialize().to_pybytes()).decode("ascii"),
        }
        for name, type_ in types.items()
    }


def types_from_dict(values: Mapping[str, Mapping[str, str]]) -> dict[str, pa.DataType]:
    """Read the types that `types_to_dict` wrote."""
    return {
        name: pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value["arrow"]))).field(0).type
        for name, value in values.items()
    }


def _column_types(files: Sequence[InputFile], options: InputOptions) -> dict[str, dict[pa.DataType, str]]:
    """Return the type of each column, with the first file where it has it; several types are from Parquet files."""
    assert options.format != "auto", "resolve_options settles the format"
    if options.format in ("jsonl", "openai_batch"):
        types = common_types(islice(_json_rows(files, options), _NUM_SAMPLED_ROWS))
        return {name: {type_: files[0].path} for name, type_ in types.items()}
    found: dict[str, dict[pa.DataType, str]] = {}
    for file in files:
        for name, type_ in _table_types(file, options).items():
            found.setdefault(name, {}).setdefault(type_, file.path)
    return found


def _table_types(file: InputFile, options: InputOptions) -> dict[str, pa.DataType]:
    """Return the types of the columns that every row of the file has."""
    location = Location.parse(file.path)
    with refuse_unreadable(file.path, options.format):
        if options.format == "parquet":
            return {field.name: plain_type(field.type) for field in parquet_schema(location)}
        names = [options.prompt_column] if options.format == "text" else file_columns(location, options)
        return dict.fromkeys(names or [], pa.string())


def _only_type(name: str, types: Mapping[pa.DataType, str]) -> pa.DataType:
    """Return the type of a carried column. Raises ValueError if it has several, besides that of nothing but nulls."""
    types = {type_: path for type_, path in types.items() if type_ != pa.null()} or types
    if len(types) > 1:
        (first, file), (other, other_file), *_ = types.items()
        raise ValueError(
            f"carried column {name!r} is {first} in {file} and {other} in {other_file}; "
            "write the files with one type, or leave it out of carry_columns"
        )
    return next(iter(types))


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of a column's values, whatever encoding they were stored in.

    A type that is not Arrow's own, and that another process may not know, is stored as another one.
    """
    if isinstance(type_, pa.DictionaryType):
        return cast(pa.DataType, type_.value_type)
    if isinstance(type_, pa.BaseExtensionType) and not type_.extension_name.startswith("arrow."):
        return type_.storage_type
    return type_


def _json_rows(files: Sequence[InputFile], options: InputOptions) -> Iterator[Columns]:
    for file in files:
        with refuse_unreadable(file.path, options.format):
            records = read_records(Location.parse(file.path), options)
            yield from (record for record in records if not isinstance(record, RowError))


def common_types(rows: Iterable[Columns]) -> dict[str, pa.DataType]:
    """Return for each column the type that all of its values fit."""
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            kinds.setdefault(name, set()).add(_kind(value))
    return {name: _common_type(seen - {"null"}) for name, seen in kinds.items()}


def _kind(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return "big int"
    return "null" if value is None else type(value).__name__


def _common_type(kinds: set[str]) -> pa.DataType:
    if kinds == {"bool"}:
        return pa.bool_()
    if kinds == {"int"}:
        return pa.int64()
    if kinds in ({"float"}, {"int", "float"}):
        return pa.float64()
    return pa.string() if kinds == {"str"} else JSON_TEXT
