"""Records of any format as dicts of columns, before their meaning is read."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from typing import Any

from pipeline.errors import RowError
from pipeline.inputs.lines import TextRecord, parse_csv, split_csv, split_lines
from pipeline.inputs.options import InputOptions
from pipeline.inputs.parquet_rows import parquet_schema
from pipeline.requests.strict_json import JsonError, parse_object
from pipeline.storage.location import Location

Columns = dict[str, Any]
_MAYBE_HALF_PAIR = re.compile(r"[\ud800-\udfff]|\\u[dD][89a-fA-F]")  # the character, or the JSON escape that makes it


def file_columns(location: Location, options: InputOptions) -> list[str] | None:
    """Return the columns that every row of the file has; None if each row has its own (JSON lines)."""
    if options.format == "parquet":
        return list(parquet_schema(location).names)
    return _csv_header(location, options.csv_separator)[0] if options.format == "csv" else None


def split_records(
    location: Location, options: InputOptions, byte_start: int = 0, byte_end: int | None = None
) -> Iterator[TextRecord]:
    """Yield the data records of a text file that lie in a byte range; a CSV header is not one."""
    if options.format == "csv":
        separator = options.csv_separator
        yield from split_csv(location, separator, max(byte_start, _csv_header(location, separator)[1]), byte_end)
    else:
        yield from split_lines(location, byte_start, byte_end)


def read_records(
    location: Location, options: InputOptions, byte_start: int = 0, byte_end: int | None = None
) -> Iterator[Columns | RowError]:
    """Yield the data records of a text file, each as its columns or as the error that is wrong with it."""
    header = file_columns(location, options) or []
    for record in split_records(location, options, byte_start, byte_end):
        try:
            yield _parse(record.data, options, header)
        except RowError as error:
            yield error


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError or RecursionError: not JSON, or strings that are no text."""
    value = json.loads(text)
    if _MAYBE_HALF_PAIR.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"it holds half a surrogate pair: {error}") from error
    return value


def _parse(data: bytes, options: InputOptions, header: list[str]) -> Columns:
    try:
        if options.format == "csv":
            fields = parse_csv(data, options.csv_separator)
            if len(fields) != len(header):
                raise RowError("read", f"this record has {len(fields)} fields and the header has {len(header)}")
            return dict(zip(header, fields, strict=True))
        if options.format == "text":
            return {options.prompt_column: data.decode("utf-8").removesuffix("\n").removesuffix("\r")}
        if options.format == "openai_batch":
            return parse_object(data, "the line")
        return _parse_json_object(data)
    except (JsonError, RecursionError) as error:
        raise RowError("read", f"not a request: {error}", type(error).__name__) from error
    except UnicodeDecodeError as error:
        raise RowError(
            "read", f"this record is not UTF-8: byte {error.start} is {data[error.start]:#04x}", "UnicodeDecodeError"
        ) from error
    except csv.Error as error:
        num_lines = data.count(b"\n")
        raise RowError("read", f"not a CSV record: {error} (it took {num_lines} lines)", "csv.Error") from error


def _parse_json_object(data: bytes) -> Columns:
    text = data.decode("utf-8")
    try:
        value = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise RowError("read", f"not a JSON line: {error}", type(error).__name__) from error
    if not isinstance(value, dict):
        raise RowError("read", f"expected a JSON object on the line, got {type(value).__name__}", "TypeError")
    return value


def _csv_header(location: Location, separator: str) -> tuple[list[str], int]:
    """Return the column names and the byte at which the header ends; ([], 0) for an empty file."""
    header = next(split_csv(location, separator), None)
    if header is None:
        return [], 0
    try:
        return parse_csv(header.data, separator), header.byte_end
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{location.name}: the first record is no CSV header: {error}") from error
