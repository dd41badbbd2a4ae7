"""Carried columns: the user's own columns, copied to the output. Each has one Arrow type for the whole run."""

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
from pipeline.inputs.parquet_rows import parquet_schema
from pipeline.inputs.records import Columns, file_columns, read_records
from pipeline.schema import generations_schema
from pipeline.storage.location import Location

_NUM_SAMPLED_ROWS = 1000
JSON_TEXT = pa.json_()  # a string column whose text is JSON: it can hold any value


def carried_types(files: Sequence[InputFile], options: InputOptions) -> dict[str, pa.DataType]:
    """Return the type of every carried column: decided once, when the run is planned, and kept in run.json.

    Parquet columns keep the type that they have in the files, which must agree. CSV columns are strings, because a cell
    is text ("007" is not 7). A column of JSON lines gets the type that fits its values in the first 1000 rows: bool,
    int64, float64 or string, or else JSON text. Raises ValueError for a column that is not in the input, has the name
    of one of Dray's own, or has different types in two Parquet files.
    """
    assert options.format != "auto", "resolve_options settles the format"
    generations_schema(dict.fromkeys(options.carry_columns, pa.string()))  # refuses the names of Dray's own columns
    if not options.carry_columns:
        return {}
    first = Location.parse(files[0].path)
    if options.format == "parquet":
        types = _parquet_types(files[0])
        for file in files[1:]:
            _refuse_other_types(types, files[0].path, file, options)
    elif options.format == "csv":
        types = dict.fromkeys(file_columns(first, "csv") or [], pa.string())
    elif options.format == "text":
        types = {options.prompt_column: pa.string()}
    else:
        types = _common_types(islice(_json_rows(files, options), _NUM_SAMPLED_ROWS))
    if missing := sorted(set(options.carry_columns) - set(types)):
        raise ValueError(
            f"carry_columns {missing} are not in the input: {files[0].path} has {', '.join(types) or 'no readable row'}"
        )
    return {name: types[name] for name in options.carry_columns}


def carry(columns: Columns, types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """Return the carried values of a row, each fit for the type of its column; absent ones are None.

    Raises RowError (stage "read") for a value that does not fit.
    """
    return {name: _fit(name, columns.get(name), type_) for name, type_ in types.items()}


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


def _fit(name: str, value: Any, type_: pa.DataType) -> Any:
    if value is None:
        return None
    if type_ == JSON_TEXT:
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
        except (ValueError, RecursionError) as error:
            raise RowError("read", f"carried column {name!r}: no JSON text: {error}", type(error).__name__) from error
    try:
        scalar = pa.scalar(value, type=type_)
        # Arrow silently truncates 1.5 to an integer and takes true for 1.0.
        loses = (pa.types.is_integer(type_) and scalar.as_py() != value) or (
            isinstance(value, bool) and not pa.types.is_boolean(type_)
        )
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        loses = True
    if loses:
        shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:80] + "..."
        raise RowError("read", f"carried column {name!r}: expected {type_}, got {shown}", "TypeError")
    return value


def _parquet_types(file: InputFile) -> dict[str, pa.DataType]:
    with refuse_unreadable(file.path, "parquet"):
        return {field.name: _plain(field.type) for field in parquet_schema(Location.parse(file.path))}


def _refuse_other_types(types: Mapping[str, pa.DataType], first: str, other: InputFile, options: InputOptions) -> None:
    """Raise ValueError for a carried column that has another type in the other file."""
    other_types = _parquet_types(other)
    for name in set(options.carry_columns) & types.keys() & other_types.keys():
        if types[name] != other_types[name]:
            raise ValueError(
                f"carried column {name!r} is {types[name]} in {first} and {other_types[name]} in {other.path}; "
                "write the files with one type, or leave it out of carry_columns"
            )


def _plain(type_: pa.DataType) -> pa.DataType:
    """Return the type of a column's values, whatever encoding they were stored in."""
    if isinstance(type_, pa.DictionaryType):
        return cast(pa.DataType, type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return type_.storage_type
    return type_


def _json_rows(files: Sequence[InputFile], options: InputOptions) -> Iterator[Columns]:
    for file in files:
        with refuse_unreadable(file.path, options.format):
            records = read_records(Location.parse(file.path), options)
            yield from (record for record in records if not isinstance(record, RowError))


def _common_types(rows: Iterable[Columns]) -> dict[str, pa.DataType]:
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
