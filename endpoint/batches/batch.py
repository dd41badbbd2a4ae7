"""Batch: the state of a batch, as batch.json keeps it and as the API shows it.

    validating -> in_progress -> finalizing -> completed
         |             |-> cancelling -> cancelled        asked by the client (also while validating)
         |             '-> expired                        its time is over
         '-> failed                                       the file is wrong, or the batch cannot go on

https://platform.openai.com/docs/api-reference/batch/object
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from pipeline.counts import Counts
from pipeline.limits import check_numbers

WINDOW_S = 24 * 3600
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
ENDED: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})
CANCELLABLE: frozenset[Status] = frozenset({"validating", "in_progress", "cancelling"})


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


@dataclass(frozen=True, kw_only=True)
class BatchError:
    """What is wrong with a batch: `line` counts from 1 in its input file, `param` is a field of that line."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch. Times are seconds since 1970; `num_completed` and `num_failed` count rows of committed units."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    model: str | None  # the name of the model that writes it; None until the file has told which of several that is
    created_at: int
    expires_at: int
    adapter: str | None = None  # the same name if that is an adapter
    metadata: Mapping[str, str] | None = None
    output_keep_s: float | None = None  # `output_expires_after`
    status: Status = "validating"
    changed_at: Mapping[str, int] = field(default_factory=dict)  # when it came into each status after the first
    errors: tuple[BatchError, ...] = ()
    num_rows: int = 0
    num_completed: int = 0
    num_failed: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None

    def become(self, status: Status, now: float, **values: Any) -> Batch:
        """Return the batch in another status, into which it comes at this time."""
        return replace(self, status=status, changed_at={**self.changed_at, status: int(now)}, **values)

    def with_counts(self, counts: Counts) -> Batch:
        """Return the batch with the counts of all its committed units."""
        return replace(
            self,
            num_completed=counts.num_rows - counts.num_errors,
            num_failed=counts.num_errors,
            num_prompt_tokens=counts.num_prompt_tokens,
            num_cached_tokens=counts.num_cached_tokens,
            num_output_tokens=counts.num_output_tokens,
        )

    def to_bytes(self) -> bytes:
        """Return the content of batch.json."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Batch:
        """Read what `to_bytes` wrote."""
        values = json.loads(content)
        return cls(**{**values, "errors": tuple(BatchError(**error) for error in values["errors"])})

    def shown(self) -> dict[str, Any]:
        """Return the batch as the API shows it."""
        at = self.changed_at
        cached, prompt, output = self.num_cached_tokens, self.num_prompt_tokens, self.num_output_tokens
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": [asdict(error) for error in self.errors]} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "in_progress_at": at.get("in_progress"),
            "expires_at": self.expires_at,
            "finalizing_at": at.get("finalizing"),
            "completed_at": at.get("completed"),
            "failed_at": at.get("failed"),
            "expired_at": at.get("expired"),
            "cancelling_at": at.get("cancelling"),
            "cancelled_at": at.get("cancelled"),
            "request_counts": {"total": self.num_rows, "completed": self.num_completed, "failed": self.num_failed},
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + output,
            },
            "metadata": self.metadata,
        }
