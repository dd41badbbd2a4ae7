"""Records of any format as dicts of columns, before their meaning is read: lines of text files, and rows of tables."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import accumulate, islice, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import RowError
from pipeline.inputs.files import TextRecord, all_lines, parse_csv, split_csv, split_lines
from pipeline.inputs.options import InputOptions
from pipeline.inputs.values import plain_values
from pipeline.requests.strict_json import JsonError, parse_object
from pipeline.storage.location import Location

_BATCH_ROWS = 256
_NO_PLAIN_FORM = (ValueError, OverflowError, pa.ArrowException)

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


def line_numbers(location: Location, options: InputOptions, rows: Set[int]) -> dict[int, int]:
    """Return the lines, counted from 1, on which these rows of a file begin; none for Parquet, which has no lines."""
    if options.format == "parquet" or not rows:
        return {}
    records = islice(enumerate(split_records(location, options)), max(rows) + 1)
    row_at = {record.byte_start: row for row, record in records if row in rows}
    lines = enumerate(all_lines(location), start=1)
    found = ((row_at[line.byte_start], number) for number, line in lines if line.byte_start in row_at)
    return dict(islice(found, len(row_at)))


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError or RecursionError: not JSON, or strings that are no text."""
    value = json.loads(text)
    if _MAYBE_HALF_PAIR.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            raise ValueError(f"it holds half a surrogate pair ({half}), which is no character") from error
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
        # Without its end, which a text that is torn would be blamed on.
        text = data.decode("utf-8").removesuffix("\n").removesuffix("\r")
        try:
            value = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise RowError(
                "read", "not a JSON line: " + str(error).replace("line 1 ", ""), type(error).__name__
            ) from error
        if not isinstance(value, dict):
            raise RowError("read", f"expected a JSON object on the line, got {type(value).__name__}", "TypeError")
        return value
    except (JsonError, RecursionError) as error:
        raise RowError("read", f"not a request: {error}", type(error).__name__) from error
    except UnicodeDecodeError as error:
        raise RowError(
            "read", f"this record is not UTF-8: byte {error.start} is {data[error.start]:#04x}", "UnicodeDecodeError"
        ) from error
    except csv.Error as error:
        num_lines = data.count(b"\n")
        raise RowError("read", f"not a CSV record: {error} (it took {num_lines} lines)", "csv.Error") from error


def _csv_header(location: Location, separator: str) -> tuple[list[str], int]:
    """Return the column names and the byte at which the header ends; ([], 0) for an empty file."""
    header = next(split_csv(location, separator), None)
    if header is None:
        return [], 0
    try:
        return parse_csv(header.data, separator), header.byte_end
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{location.name}: the first record is no CSV header: {error}") from error


class TableRow(dict[str, Any]):
    """A row of a table, as the plain values of its columns; `cell` has them as Arrow does, exactly."""

    def __init__(self, values: Mapping[str, Any], batch: pa.RecordBatch, index: int) -> None:
        super().__init__(values)
        self._batch, self._index = batch, index

    def cell(self, name: str) -> pa.Array[Any]:
        """Return an array of one value: that of this column."""
        return self._batch.column(name).slice(self._index, 1)


def parquet_schema(location: Location) -> pa.Schema:
    """Return the Arrow schema of the file."""
    with location.open_file() as file:
        return pq.ParquetFile(file).schema_arrow


def parquet_size(location: Location, columns: Sequence[str]) -> tuple[int, int]:
    """Return (rows in the file, uncompressed bytes of those of `columns` that it has), from its footer."""
    with location.open_file() as file:
        metadata = pq.ParquetFile(file).metadata
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    chunks = (chunk for group in groups for chunk in map(group.column, range(group.num_columns)))
    sizes = (chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in columns)
    return metadata.num_rows, sum(sizes)


def read_parquet_rows(
    location: Location, row_start: int, num_rows: int, columns: Sequence[str] | None
) -> Iterator[TableRow | RowError]:
    """Yield rows [row_start, row_start + num_rows), with those of `columns` that the file has (None: all)."""
    with location.open_file() as file:
        parquet = pq.ParquetFile(file)
        present = parquet.schema_arrow.names
        wanted = present if columns is None else [name for name in present if name in columns]
        groups, first_row = _overlapping_groups(parquet.metadata, row_start, row_start + num_rows)
        skip, left = row_start - first_row, num_rows
        for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=groups, columns=wanted):
            rows = batch.slice(skip, left)
            skip, left = max(0, skip - batch.num_rows), left - rows.num_rows
            yield from to_rows(rows)
            if left == 0:
                return


def _overlapping_groups(metadata: pq.FileMetaData, row_start: int, row_end: int) -> tuple[list[int], int]:
    """Return the row groups that hold rows of the range, and the first row of the first group."""
    sizes = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    ends = list(accumulate(sizes, initial=0))
    groups = [i for i, (start, end) in enumerate(pairwise(ends)) if start < row_end and end > row_start]
    return groups, ends[groups[0]] if groups else row_start


def to_rows(rows: pa.RecordBatch | pa.Table) -> Iterator[TableRow | RowError]:
    """Yield each row, or an error if one of its values has no plain form (a string that is not UTF-8)."""
    for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
        names = batch.schema.names
        columns = [_plain(name, column) for name, column in zip(names, batch.columns, strict=True)]
        for index, values in enumerate(zip(*columns, strict=True) if columns else [()] * batch.num_rows):
            error = next((value for value in values if isinstance(value, RowError)), None)
            yield error or TableRow(dict(zip(names, values, strict=True)), batch, index)


def _plain(name: str, column: pa.Array[Any]) -> list[Any]:
    """Return the plain value of each cell of a column; of a cell without one, the error that its row becomes."""
    try:
        return plain_values(column)
    except _NO_PLAIN_FORM as error:
        if len(column) == 1:
            return [RowError("read", f"column {name!r} cannot be read: {error}", type(error).__name__)]
    return [value for index in range(len(column)) for value in _plain(name, column.slice(index, 1))]
