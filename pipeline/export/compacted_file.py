"""One file of a compacted run: a stretch of the run's rows, and in its footer, which stretch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.run.row_order import last_whole_row
from pipeline.storage.location import Location
from pipeline.storage.whole_file import replacement

_FOOTER_KEY = b"dray_compact"
# Of the rows in memory, about three times what zstd leaves of them: enough to compress well, little to hold.
_ROW_GROUP_BYTES = 64 << 20
_SORTED_BY = ("row_id", "sample")


class Place(NamedTuple):
    """A place in a run, in front of a row: of a unit, and of its rows in order."""

    unit_id: int
    row: int


@dataclass(frozen=True)
class Cut:
    """Where a file ends: before more than `max_rows`, or with the row group that brings it to `num_bytes`.

    Never between two samples of an input row, so a row with more than `max_rows` samples has a larger file.
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


@dataclass(frozen=True)
class Stretch:
    """What a file holds: the rows from `start` up to `end`. `compaction` is the digest of what it is of, and how."""

    compaction: str
    start: Place
    end: Place
    num_rows: int

    @classmethod
    def of_file(cls, location: Location) -> Stretch | None:
        """What the file's footer says; None if there is no whole file of a compaction."""
        try:
            with location.open_file() as file:
                footer = (pq.ParquetFile(file).metadata.metadata or {})[_FOOTER_KEY]
        except (FileNotFoundError, KeyError, pa.ArrowException):
            return None
        values = json.loads(footer)
        return cls(**values | {"start": Place(*values["start"]), "end": Place(*values["end"])})


def write_file(
    location: Location,
    schema: pa.Schema,
    pieces: Iterable[tuple[Place, pa.Table]],
    start: Place,
    cut: Cut,
    compaction: str,
) -> Stretch:
    """Write a file, whole or not at all, of the first of these pieces: as much as the cut allows.

    A piece is a table and the place of its first row; the first one begins at `start`. Raises OSError.
    """
    end, num_rows = start, 0
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
        group = _RowGroup(writer, cut.row_group_bytes)
        for place, table in pieces:
            room = table.num_rows if cut.max_rows is None else cut.max_rows - num_rows
            num_taken = last_whole_row(table, room)
            if num_taken > room and num_rows:
                break
            group.add(table.slice(0, num_taken))
            num_rows, end = num_rows + num_taken, Place(place.unit_id, place.row + num_taken)
            is_large = cut.num_bytes is not None and group.is_written and stream.tell() >= cut.num_bytes
            if num_taken < table.num_rows or is_large:
                break
        group.write()
        stretch = Stretch(compaction, start, end, num_rows)
        writer.add_key_value_metadata({_FOOTER_KEY.decode(): json.dumps(asdict(stretch))})
    return stretch


class _RowGroup:
    """Tables on their way into one row group."""

    def __init__(self, writer: pq.ParquetWriter, num_bytes: int) -> None:
        self._writer, self._num_bytes = writer, num_bytes
        self._tables: list[pa.Table] = []
        self._bytes_waiting = 0

    @property
    def is_written(self) -> bool:
        return not self._tables

    def add(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._bytes_waiting += table.nbytes
        if self._bytes_waiting >= self._num_bytes:
            self.write()

    def write(self) -> None:
        num_rows = sum(table.num_rows for table in self._tables)
        if num_rows:
            self._writer.write_table(pa.concat_tables(self._tables), row_group_size=num_rows)
        self._tables, self._bytes_waiting = [], 0
