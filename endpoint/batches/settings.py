"""BatchSettings: where files and batches are kept, and how much of them a key may have."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.limits import check_numbers


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """The Batch API: `path` switches it on."""

    path: str | None = None
    """Folder or URI for the Batch API (/v1/files, /v1/batches), which every node sees; without it there is none."""
    max_file_bytes: int = 200 * 2**20
    """Largest file that may be uploaded; then 413."""
    max_rows: int = 50_000
    """Requests that a batch may have."""
    max_in_progress: int = 16
    """Batches of one key that may be unfinished at once; then 429."""
    max_files: int = 1000
    """Files that one key may have, results among them; no upload beyond them (429)."""
    keep_s: float = 30 * 86_400.0
    """Seconds that files and results are kept unless a client says otherwise (expires_after)."""
    rows_per_unit: int = 32
    """Requests in a work unit: what a crash, a cancellation or the end of a batch's time can cost at most."""
    reserved_slots: int | None = None
    """Slots of each engine that rows of batches leave to other requests; a quarter unless given."""

    def __post_init__(self) -> None:
        counts = ("max_file_bytes", "max_rows", "max_in_progress", "max_files", "rows_per_unit")
        check_numbers(self, "serve.batches_", at_least_1=counts, not_negative=("reserved_slots",))
        check_numbers(self, "serve.batches_", finite_seconds=("keep_s",))
