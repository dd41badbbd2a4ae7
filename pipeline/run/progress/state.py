"""What a run is doing now, as its directory tells: on any machine, without Ray, while it goes on."""

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import pyarrow.parquet as pq

from pipeline.run.directory import RunDirectory
from pipeline.run.progress.lease import Holder
from pipeline.run.reading import READS_AT_ONCE, read_ahead
from pipeline.storage.location import Location

State = Literal["complete", "running", "stopped"]

_PACE_WINDOW_S = 600.0  # of commits, back from the newest, that say how fast the run is
_MOST_ERROR_FILES = 256  # whose rows are counted; of more the number of units is enough
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class RunState:
    """The state of a run, and how far it is.

    `complete`: verified, and no driver is at work. `running`: a driver gives signs of life. `stopped`: neither.
    """

    state: State
    num_units: int
    num_committed_units: int
    num_rows: int
    num_committed_rows: int
    rows_per_second: float | None  # by the newest commits; None if there are too few to tell
    seconds_left: float | None  # at that pace; None unless it runs
    num_units_with_errors: int
    num_error_rows: int | None  # None if they are too many to count
    holder: Holder | None  # the driver that the lease names, alive or not
    newest_commit: str | None  # by the clock of the storage


def read_state(run_directory: RunDirectory, patience_s: float | None = None) -> RunState:
    """Read what a run is doing, from the manifest and one listing of each folder.

    A driver that looks silent is watched for `patience_s` seconds (by default, a little more than it takes to renew its
    lease). Raises ValueError for a damaged manifest, and OSError if the storage does not answer.
    """
    # In this order a run that completes meanwhile is told of as running or complete, never as stopped.
    lease = run_directory.location.child("_LEASE")
    content = lease.read_if_there()
    is_running = _is_alive(lease, content, patience_s)
    is_success = run_directory.is_success()
    parts = run_directory.committed_parts()
    num_rows = num_committed_rows = 0
    commits: list[tuple[datetime, int]] = []
    for unit in run_directory.units():
        num_rows += unit.num_rows
        if (part := parts.get(unit.unit_id)) is not None:
            num_committed_rows += unit.num_rows
            if part.mtime is not None:
                commits.append((part.mtime, unit.num_rows))
    commits.sort()
    is_complete = is_success and len(parts) == run_directory.manifest.num_units
    pace = _rows_per_second(commits)
    failed = run_directory.failed_unit_ids() & parts.keys()
    return RunState(
        state="running" if is_running else "complete" if is_complete else "stopped",
        num_units=run_directory.manifest.num_units,
        num_committed_units=len(parts),
        num_rows=num_rows,
        num_committed_rows=num_committed_rows,
        rows_per_second=pace,
        seconds_left=(num_rows - num_committed_rows) / pace if is_running and pace else None,
        num_units_with_errors=len(failed),
        num_error_rows=_num_error_rows(run_directory, failed) if len(failed) <= _MOST_ERROR_FILES else None,
        holder=Holder.from_bytes(content),
        newest_commit=commits[-1][0].isoformat(timespec="seconds") if commits else None,
    )


def _rows_per_second(commits: Sequence[tuple[datetime, int]]) -> float | None:
    """Return the pace of the newest commits: the rows of all but the first of them, over the time since that one."""
    recent = [each for each in commits if (commits[-1][0] - each[0]).total_seconds() <= _PACE_WINDOW_S]
    seconds = (recent[-1][0] - recent[0][0]).total_seconds() if recent else 0.0
    return sum(num_rows for _, num_rows in recent[1:]) / seconds if seconds > 0 else None


def _num_error_rows(run_directory: RunDirectory, unit_ids: set[int]) -> int:
    """Count the rows of these errors files by their footers; a file that a retry deletes meanwhile has none."""

    def count(unit_id: int) -> int:
        try:
            with run_directory.errors_path(unit_id).open_file() as stream:
                return int(pq.read_metadata(stream).num_rows)
        except FileNotFoundError:
            return 0

    return sum(read_ahead(count, unit_ids, READS_AT_ONCE))


def _is_alive(lease: Location, content: bytes | None, patience_s: float | None) -> bool:
    """Tell whether the driver of this lease lives: by its process if that is on this machine, else by its renewals."""
    holder = Holder.from_bytes(content)
    if holder is None:
        return False
    age_s = (datetime.now(UTC) - datetime.fromisoformat(holder.renewed)).total_seconds()
    if holder.host == socket.gethostname() and not _is_process(holder.pid):
        return False
    if 0 <= age_s <= holder.timeout_s:
        return True
    # The clocks of two machines may differ: what counts in the end is whether the file changes.
    give_up = time.monotonic() + (holder.timeout_s / 4 if patience_s is None else patience_s)
    while time.monotonic() < give_up:
        time.sleep(_LOOK_EVERY_S)
        if (now := lease.read_if_there()) != content:
            return now is not None
    return False


def _is_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # signal 0 is none: only whether it could be sent
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
