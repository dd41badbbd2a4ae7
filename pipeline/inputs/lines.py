"""Text files as records with byte ranges: lines, and CSV records that may span lines.

A byte range found while planning is read again by a worker, so this is the only module that decides where a record
ends. A blank record (whitespace alone) is skipped and not counted. In a compressed file offsets count the bytes that it
holds. Lines end at "\\n" or "\\r\\n"; a byte order mark at the start of the file is not data.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, cast

from pipeline.storage.location import Location

_BUFFER_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}  # by the end of a file's name

# The default limit of 128 KiB is less than a long prompt. This one only bounds how much a quote that is never closed
# can swallow. It is a setting of the csv module, and so of the whole process.
csv.field_size_limit(1 << 27)


class TextRecord(NamedTuple):
    """The bytes [byte_start, byte_end) of a file, line end included; no byte order mark in `data`."""

    byte_start: int
    byte_end: int
    data: bytes


def split_lines(location: Location, byte_start: int = 0, byte_end: int | None = None) -> Iterator[TextRecord]:
    """Yield the lines of a byte range that are not blank; the range begins and ends where lines do."""
    return (line for line in _all_lines(location, byte_start, byte_end) if line.data.strip())


def split_csv(
    location: Location, separator: str, byte_start: int = 0, byte_end: int | None = None
) -> Iterator[TextRecord]:
    """Yield the CSV records of a byte range that are not blank, header included; a quoted field may hold line ends.

    The csv module decides where a record ends: it pulls as many lines as the record needs.
    """
    pulled: list[TextRecord] = []

    def pull() -> Iterator[str]:
        for line in _all_lines(location, byte_start, byte_end):
            pulled.append(line)
            yield line.data.decode("utf-8", errors="surrogateescape")

    reader = csv.reader(pull(), delimiter=separator, strict=True)
    while True:
        pulled.clear()
        try:
            next(reader)
        except StopIteration:
            return
        except csv.Error:
            pass  # the record ends where the parser gave up; parse_csv meets the same error and reports it
        data = b"".join(line.data for line in pulled)
        if data.strip():
            yield TextRecord(pulled[0].byte_start, pulled[-1].byte_end, data)


def parse_csv(data: bytes, separator: str) -> list[str]:
    """Return the fields of one CSV record. Raises ValueError (not UTF-8) or csv.Error (quotes that do not match)."""
    return next(csv.reader(io.StringIO(data.decode("utf-8"), newline="\n"), delimiter=separator, strict=True))


def compression_of(path: str) -> str | None:
    """Return how a file is compressed, by its name, as Arrow calls it; None if it is not."""
    return next((codec for ending, codec in COMPRESSIONS.items() if path.lower().endswith(ending)), None)


def _all_lines(location: Location, byte_start: int, byte_end: int | None) -> Iterator[TextRecord]:
    with _open_at(location, byte_start) as stream:
        position = byte_start
        while (byte_end is None or position < byte_end) and (data := stream.readline()):
            start, position = position, position + len(data)
            yield TextRecord(start, position, data.removeprefix(_BYTE_ORDER_MARK) if start == 0 else data)


@contextmanager
def _open_at(location: Location, byte_start: int) -> Iterator[BinaryIO]:
    if (codec := compression_of(location.path)) is not None:
        with location.retrying(
            "opening", lambda: location.filesystem.open_input_stream(location.path, compression=codec)
        ) as decompressed:
            stream = io.BufferedReader(cast(Any, decompressed), _BUFFER_BYTES)
            left = byte_start
            while skipped := stream.read(min(_BUFFER_BYTES, left)):
                left -= len(skipped)
            yield cast(BinaryIO, stream)
    else:
        with location.open_file() as file:
            file.seek(byte_start)
            yield cast(BinaryIO, io.BufferedReader(cast(Any, file), _BUFFER_BYTES))
