"""Parquet files read with the checksum of every page verified: a flipped bit is an error, never another value."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq


def open_checked(file: pa.NativeFile) -> pq.ParquetFile:
    """The Parquet file in this stream. Raises OSError or ArrowException, also when it is read, where it is damaged."""
    return pq.ParquetFile(file, page_checksum_verification=True)


def table_of(content: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """The table of a file's bytes, with these columns (None: all). Raises OSError or ArrowException: damaged."""
    return open_checked(pa.BufferReader(content)).read(None if columns is None else list(columns))
