"""Parquet files of a run, with a checksum on every page: a flipped bit is an error, never another value."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.storage.location import Location
from pipeline.storage.small_object import SMALL, read_small

_ROWS_PER_ROW_GROUP = 8192


def to_parquet(table: pa.Table) -> bytes:
    """Return the table as the bytes of a Parquet file, as all files of a run are written."""
    sink = pa.BufferOutputStream()
    is_large = table.nbytes > SMALL  # dictionaries and statistics of few rows take more than they save
    options: Any = {"compression": "zstd", "row_group_size": _ROWS_PER_ROW_GROUP, "write_page_checksum": True}
    pq.write_table(table, sink, use_dictionary=is_large, write_statistics=is_large, **options)
    return sink.getvalue().to_pybytes()


def open_checked(file: pa.NativeFile) -> pq.ParquetFile:
    """Open the Parquet file in this stream. Opening and reading raise OSError or ArrowException if it is damaged."""
    return pq.ParquetFile(file, page_checksum_verification=True)


def read_columns(location: Location, columns: Sequence[str]) -> pa.Table:
    """Read these columns of a Parquet file, and no others. Raises OSError, and ValueError, naming it, for damage."""

    def read() -> pa.Table:
        if (content := read_small(location.name, location.path, location.filesystem)) is not None:
            return table_of(content, columns)
        with location.filesystem.open_input_file(location.path) as file:
            if file.size() <= SMALL:  # a store answers one request for all of it sooner than two for its ends
                return table_of(file.read(), columns)
            return pq.ParquetFile(file, pre_buffer=True, page_checksum_verification=True).read(list(columns))

    try:
        return location.retrying("reading", read)
    except pa.ArrowException as error:
        raise ValueError(f"{location.name}: damaged ({error}); dray verify says more") from error


def table_of(content: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the table in a file's bytes, with these columns (None: all). Raises OSError or ArrowException: damaged."""
    is_small = len(content) <= SMALL  # threads take longer to begin than to read
    return open_checked(pa.BufferReader(content)).read(None if columns is None else list(columns), not is_small)
