"""Parquet input files: schema and size from the footer, and ranges of rows as dicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import RowError
from pipeline.storage.location import Location

_BATCH_ROWS = 256


def parquet_schema(location: Location) -> pa.Schema:
    """Return the Arrow schema of the file."""
    with location.open_file() as file:
        return pq.ParquetFile(file).schema_arrow


def parquet_size(location: Location, columns: Sequence[str]) -> tuple[int, int]:
    """Return (rows in the file, uncompressed bytes of those of `columns` that it has), from its footer."""
    with location.open_file() as file:
        metadata = pq.ParquetFile(file).metadata
    num_bytes = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        chunks = (row_group.column(index) for index in range(row_group.num_columns))
        num_bytes += sum(
            chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in columns
        )
    return metadata.num_rows, num_bytes


def read_parquet_rows(
    location: Location, row_start: int, num_rows: int, columns: Sequence[str] | None
) -> Iterator[dict[str, Any] | RowError]:
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
    groups: list[int] = []
    first_row, position = row_start, 0
    for group in range(metadata.num_row_groups):
        group_start, position = position, position + metadata.row_group(group).num_rows
        if group_start < row_end and position > row_start:
            first_row = first_row if groups else group_start
            groups.append(group)
    return groups, first_row


def to_rows(rows: pa.RecordBatch | pa.Table) -> Iterator[dict[str, Any] | RowError]:
    """Yield each row as a dict, or as an error if one of its values has no Python form (a string that is not UTF-8)."""
    try:
        whole = rows.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):
        pass  # some row of the batch has such a value; the loop below finds it
    else:
        yield from whole
        return
    for index in range(rows.num_rows):
        try:
            yield rows.slice(index, 1).to_pylist()[0]
        except (ValueError, OverflowError, pa.ArrowException) as error:
            yield RowError("read", f"a value of this row cannot be read: {error}", type(error).__name__)
