"""One large Parquet file of a compacted run, and how large it may be."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.storage.location import Location
from pipeline.storage.whole_file import replacement

# Bytes of rows in memory, about three times what zstd leaves of them: enough to compress well, little to hold.
_ROW_GROUP_BYTES = 64 << 20
_SORTED_BY = ("row_id", "sample")


@dataclass(frozen=True)
class Cut:
    """The size of a file: at most `max_rows` rows, or the row groups that bring it to `num_bytes`.

    The samples of an input row stay together, so a row with more than `max_rows` samples has a larger file.
    """

    max_rows: int | None = None
    num_bytes: int | None = None

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.max_rows, self.num_bytes) if limit is not None]
        if len(limits) != 1:
            raise ValueError("files are cut by rows or by bytes: give one of the two")
        if limits[0] < 1:
            raise ValueError(f"a file holds at least one row or byte, got {limits[0]}")

    @property
    def row_group_bytes(self) -> int:
        """Bytes of rows in memory that make a row group: a file has several, so that it ends near its size."""
        return _ROW_GROUP_BYTES if self.num_bytes is None else max(1, min(_ROW_GROUP_BYTES, self.num_bytes // 4))


class RowQueue:
    """The rows of ordered tables, taken from the front as row groups; only the front is in memory."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        """Read the first table. All samples of an input row must be in one table."""
        self._tables = (table for table in tables if table.num_rows)
        self._front = next(self._tables, None)

    @property
    def is_empty(self) -> bool:
        """Whether no row is left."""
        return self._front is None

    def take(self, num_bytes: int, max_rows: int) -> list[pa.Table]:
        """Take about `num_bytes` and at most `max_rows` of the next rows; none if the next row's samples exceed it."""
        taken: list[pa.Table] = []
        while self._front is not None and num_bytes > 0:
            table = self._front
            by_bytes = table.num_rows * num_bytes // max(1, table.nbytes)
            num_rows = _whole_rows(table, min(by_bytes, max_rows))
            if num_rows > max_rows:
                break
            taken.append(table.slice(0, num_rows))
            num_bytes, max_rows = num_bytes - taken[-1].nbytes, max_rows - num_rows
            self._front = table.slice(num_rows) if num_rows < table.num_rows else next(self._tables, None)
        return taken


def write_file(location: Location, schema: pa.Schema, rows: RowQueue, cut: Cut) -> int:
    """Write a file of the next rows, whole or not at all, and return how many it holds. Raises OSError."""
    max_rows, num_rows = cut.max_rows or sys.maxsize, 0
    with (
        replacement(location) as stream,
        pq.ParquetWriter(
            stream,
            schema,
            compression="zstd",
            write_page_checksum=True,
            sorting_columns=[pq.SortingColumn(index) for index, name in enumerate(schema.names) if name in _SORTED_BY],
        ) as writer,
    ):
        # An input row with more samples than a file should have gets a file of its own.
        tables = rows.take(cut.row_group_bytes, max_rows) or rows.take(1, sys.maxsize)
        while tables:
            group = pa.concat_tables(tables)
            writer.write_table(group, row_group_size=group.num_rows)
            num_rows += group.num_rows
            is_full = cut.num_bytes is not None and stream.tell() >= cut.num_bytes
            tables = [] if is_full else rows.take(cut.row_group_bytes, max(0, max_rows - num_rows))
    return num_rows


def _whole_rows(table: pa.Table, limit: int) -> int:
    """Count the rows up to `limit` that part no input row's samples, but at least the first input row's samples."""
    row_ids = table["row_id"].to_numpy()
    if limit >= len(row_ids):
        return len(row_ids)
    return int(np.searchsorted(row_ids, row_ids[limit]) or np.searchsorted(row_ids, row_ids[0], side="right"))
