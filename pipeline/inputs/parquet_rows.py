"""Parquet input files: schema and size from the footer, and ranges of rows as dicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import RowError
from pipeline.storage.location import Location

_BATCH_ROWS = 256
_NO_PYTHON_FORM = (ValueError, OverflowError, pa.ArrowException)


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
    sizes = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    ends = list(accumulate(sizes, initial=0))
    groups = [i for i, (start, end) in enumerate(pairwise(ends)) if start < row_end and end > row_start]
    return groups, ends[groups[0]] if groups else row_start


def to_rows(rows: pa.RecordBatch | pa.Table) -> Iterator[dict[str, Any] | RowError]:
    """Yield each row as a dict, or as an error if one of its values has no Python form (a string that is not UTF-8)."""
    with suppress(*_NO_PYTHON_FORM):  # the loop below finds the row with such a value
        yield from rows.to_pylist()
        return
    for index in range(rows.num_rows):
        try:
            yield rows.slice(index, 1).to_pylist()[0]
        except _NO_PYTHON_FORM as error:
            yield RowError("read", f"a value of this row cannot be read: {error}", type(error).__name__)
