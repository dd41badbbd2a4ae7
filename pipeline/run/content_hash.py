"""The content hash of a corpus: equal for two of the same tokens, however they were made and are cut into files."""

from __future__ import annotations

import hashlib
import struct

import pyarrow as pa

HASHED_COLUMNS = ("row_id", "sample", "token_ids", "finish_reason")


class ContentHash:
    """A sha256 over every generation's row, sample, tokens and finish reason, in row order.

    Acceptance counts, texts and the order within a table play no role.
    """

    def __init__(self) -> None:
        """Of nothing yet."""
        self._digest = hashlib.sha256()

    def add(self, generations: pa.Table) -> None:
        """Go on with these rows, which come after all that were added before."""
        rows = generations.select(HASHED_COLUMNS).to_pylist()
        for row in sorted(rows, key=lambda row: (row["row_id"], row["sample"])):
            token_ids, reason = row["token_ids"], row["finish_reason"].encode()
            self._digest.update(struct.pack("<qiii", row["row_id"], row["sample"], len(token_ids), len(reason)))
            self._digest.update(struct.pack(f"<{len(token_ids)}i", *token_ids) + reason)

    def hexdigest(self) -> str:
        """The hash so far."""
        return self._digest.hexdigest()
