"""The content hash of a corpus: equal for two with the same tokens, however they were made and are cut into files."""

from __future__ import annotations

import hashlib
import struct

import pyarrow as pa

from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location
from pipeline.storage.parquet import open_checked

HASHED_COLUMNS = ("row_id", "sample", "token_ids", "finish_reason")


class ContentHash:
    """A sha256 over every generation's row, sample, tokens and finish reason, in row order.

    Acceptance counts, texts and the order within a table play no role.
    """

    def __init__(self) -> None:
        """Start with no rows."""
        self._digest = hashlib.sha256()

    def add(self, generations: pa.Table) -> None:
        """Add these rows, which come after all that were added before."""
        rows = generations.select(HASHED_COLUMNS).to_pylist()
        for row in sorted(rows, key=lambda row: (row["row_id"], row["sample"])):
            token_ids, reason = row["token_ids"], row["finish_reason"].encode()
            self._digest.update(struct.pack("<qiii", row["row_id"], row["sample"], len(token_ids), len(reason)))
            self._digest.update(struct.pack(f"<{len(token_ids)}i", *token_ids) + reason)

    def hexdigest(self) -> str:
        """Return the hash of the rows so far."""
        return self._digest.hexdigest()


def content_hash(run_directory: RunDirectory) -> str:
    """Return the `ContentHash` of all generations of a run. Raises FileNotFoundError if a unit is missing."""
    content = ContentHash()
    for unit in run_directory.units():
        content.add(_read_hashed_columns(run_directory.part_path(unit.unit_id)))
    return content.hexdigest()


def _read_hashed_columns(part: Location) -> pa.Table:
    def read() -> pa.Table:
        with part.open_file() as file:
            return open_checked(file).read(list(HASHED_COLUMNS))

    return part.retrying("reading", read)
