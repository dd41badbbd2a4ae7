"""The content hash of a corpus: equal for two with the same tokens, however they were made and are cut into files."""

from __future__ import annotations

import hashlib
import struct

import pyarrow as pa

from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import each_unit

HASHED_COLUMNS = ("row_id", "sample", "token_ids", "finish_reason")


class ContentHash:
    """A sha256 over every generation's row, sample, tokens and finish reason, not over its counts and text."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, generations: pa.Table) -> None:
        """Add these rows, in their order, which come after all that were added before."""
        columns = (generations[name].to_pylist() for name in HASHED_COLUMNS)
        for row_id, sample, token_ids, finish_reason in zip(*columns, strict=True):
            reason = finish_reason.encode()
            self._digest.update(struct.pack("<qiii", row_id, sample, len(token_ids), len(reason)))
            self._digest.update(struct.pack(f"<{len(token_ids)}i", *token_ids) + reason)

    def hexdigest(self) -> str:
        """Return the hash of the rows so far."""
        return self._digest.hexdigest()


def content_hash(run_directory: RunDirectory) -> str:
    """Return the `ContentHash` of all generations of a run. Raises FileNotFoundError if a unit is missing."""
    content = ContentHash()
    for rows in each_unit(run_directory, run_directory.units(), HASHED_COLUMNS):
        content.add(rows.generations)
    return content.hexdigest()
