"""Commit a unit: its part appears whole or not at all, once, and the part's existence is the commit.

Error rows are written before the part, so a reader that sees the part sees the error rows that belong to it. On a local
disk a lock file keeps the two together when two attempts at one unit end in the same moment; without the lock, the link
still lets only one attempt win. On S3 the part that is put first stays (`pipeline/storage/conditional.py`); on stores
without conditional writes both attempts put the same generations. If they failed on different rows, `check.check_run`
names a row that is then in neither place, and a row in both places counts as generated.

Only `amend_part` replaces a part, after rows that had failed were tried again: they move from the unit's error rows to
its part. The new part replaces the old one whole, and only then the error rows are replaced or deleted. A process that
dies in between leaves rows in both files. Data wins: such a row counts as generated wherever a run is read, and the
next amendment of the unit deletes its error row.
"""

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from pipeline.counts import Counts, count_generations
from pipeline.errors import ErrorRow
from pipeline.inputs.records import parquet_schema
from pipeline.inputs.units import WorkUnit
from pipeline.run.directory import COMMIT_LOCK, RunDirectory
from pipeline.run.fingerprint import provenance
from pipeline.run.unit_rows import in_row_order, read_unit_rows, without_rows_of
from pipeline.schema import errors_table
from pipeline.storage.parquet import to_parquet
from pipeline.storage.whole_file import create_file, replace_file

_FOOTER_KEY = b"dray"


@dataclass(frozen=True)
class Work:
    """How a unit was done, for the report of its run; nothing depends on it.

    `round_seconds[k]` is what a round of all slots takes if each row drafts k tokens, as the engine measured it at its
    start; empty where draft lengths do not depend on that.
    """

    ended_at: float  # seconds since 1970, by the clock of the process
    seconds: float
    peak_memory_bytes: int  # of the process so far, without the memory of a GPU
    process: str
    round_seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Receipt:
    """One committed unit: what the driver gets back, and what the part's footer keeps.

    `already_committed` says that another attempt committed it; the counts are that attempt's. `seconds` is how long the
    attempt took, if it was measured.
    """

    unit_id: int
    counts: Counts
    attempt: int
    already_committed: bool = False
    seconds: float | None = None


def commit_part(
    run_directory: RunDirectory,
    unit: WorkUnit,
    generations: pa.Table,
    errors: pa.Table,
    attempt: int,
    engine: Mapping[str, str | bool | int] | None = None,
    work: Work | None = None,
) -> Receipt:
    """Write the rows of a unit and return its receipt; if another attempt has committed it, return that receipt.

    `engine` describes what generated the rows, for the footer: engines of one run may differ. `work` is for it, too.
    Raises OSError if the disk or store fails: nothing is committed then, and the unit can be tried again.
    """
    counts = count_generations(generations, errors.num_rows)
    assert counts.num_rows == unit.num_rows, "rows in must equal rows out"
    receipt = Receipt(unit.unit_id, counts, attempt, seconds=None if work is None else work.seconds)
    content = part_content(generations, receipt, engine, work, provenance(run_directory, unit))
    part, errors_path = run_directory.part_path(unit.unit_id), run_directory.errors_path(unit.unit_id)
    with commit_lock(run_directory):
        if not part.exists():
            if errors.num_rows:
                replace_file(errors_path, to_parquet(errors), run_directory.temporary)
            elif run_directory.location.is_local:
                # An earlier attempt that failed on some row, and then died, may have left error rows. On a store, which
                # has no lock, they may be those of an attempt that commits at this moment, so they stay there: rows
                # that are also in data count as generated.
                errors_path.remove()
            if create_file(part, content, run_directory.temporary):
                return receipt
    return replace(read_receipt(run_directory, unit.unit_id), already_committed=True)


def read_receipt(run_directory: RunDirectory, unit_id: int) -> Receipt:
    """Read the receipt of a committed unit from its part's footer.

    Raises FileNotFoundError if the unit is not committed, ValueError if its part is foreign or damaged.
    """
    part = run_directory.part_path(unit_id)
    try:
        return receipt_of(part.retrying("reading", lambda: parquet_schema(part)))
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{part.name}: not a part of a run, or damaged: {error}") from error


def receipt_of(schema: pa.Schema) -> Receipt:
    """Return the receipt in the schema of a part. Raises KeyError, TypeError or ValueError if there is none."""
    footer = json.loads((schema.metadata or {})[_FOOTER_KEY])
    return Receipt(footer["unit"], Counts.from_dict(footer["counts"]), footer["attempt"])


def engine_of(schema: pa.Schema) -> dict[str, str | bool | int]:
    """Return the description, in the schema of a part, of the engine that generated it; {} if there is none."""
    engine: dict[str, str | bool | int] = json.loads((schema.metadata or {}).get(_FOOTER_KEY, b"{}")).get("engine", {})
    return engine


def work_of(schema: pa.Schema) -> Work | None:
    """Return how the unit of a part was done, by its schema; None in parts that do not say so."""
    work = json.loads((schema.metadata or {}).get(_FOOTER_KEY, b"{}")).get("work")
    return None if work is None else Work(**{**work, "round_seconds": tuple(work["round_seconds"])})


def provenance_of(schema: pa.Schema) -> dict[str, Any] | None:
    """Return the `provenance` in the schema of a part; None in parts that do not say it."""
    found: dict[str, Any] | None = json.loads((schema.metadata or {}).get(_FOOTER_KEY, b"{}")).get("provenance")
    return found


def part_content(
    generations: pa.Table,
    receipt: Receipt,
    engine: Mapping[str, str | bool | int] | None = None,
    work: Work | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> bytes:
    """Return a unit's part as bytes: its generations, and in the footer its receipt and what generated it."""
    footer = {
        "unit": receipt.unit_id,
        "counts": receipt.counts.to_dict(),
        "attempt": receipt.attempt,
        "engine": dict(engine or {}),
        **({} if work is None else {"work": asdict(work)}),
        **({} if provenance is None else {"provenance": provenance}),
    }
    return to_parquet(generations.replace_schema_metadata({_FOOTER_KEY: json.dumps(footer)}))


@contextmanager
def commit_lock(run_directory: RunDirectory) -> Iterator[None]:
    """Hold the run's commit lock; on object stores and mounts without locks, go on without it."""
    if not run_directory.location.is_local:
        yield
        return
    with open(run_directory.temporary.child(COMMIT_LOCK).path, "ab") as lock:
        with suppress(OSError):  # a mount without locks: the link still lets one attempt win
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def amend_part(
    run_directory: RunDirectory,
    unit: WorkUnit,
    generations: pa.Table,
    errors: Sequence[ErrorRow],
    seconds: float | None = None,
    engine: Mapping[str, str | bool | int] | None = None,
) -> Receipt:
    """Add `generations` of rows that had failed and `errors` of rows that failed again; return the receipt of both.

    A row that is in the part already keeps its generations, and a failed row that is in neither `generations` nor
    `errors` keeps its error row. A row that failed again gets its newest message, and its `attempt` counts one more.
    Raises ValueError if the unit's files are damaged or do not add up, OSError if the disk or store fails; it is
    harmless to call this again.

    `engine` describes what generated the new rows; the footer keeps the properties that hold for the old rows, too.
    """
    part, errors_path = run_directory.part_path(unit.unit_id), run_directory.errors_path(unit.unit_id)
    with commit_lock(run_directory):
        before = read_unit_rows(run_directory, unit)
        added = without_rows_of(before.generations, generations)
        after = in_row_order(before.generations, added)
        had_failed = [ErrorRow(**row) for row in before.errors.to_pylist()]
        again = {error.row_id: error for error in errors}
        added_ids = set(added["row_id"].to_pylist())
        failed = [  # rows tried again with their newest message, the others as they were
            replace(again.get(old.row_id, old), attempt=old.attempt + (old.row_id in again))
            for old in had_failed
            if old.row_id not in added_ids
        ]
        counts = count_generations(after, len(failed))
        if counts.num_rows != unit.num_rows:
            raise ValueError(
                f"{part.name}: {counts.num_rows} rows in data and errors, and unit {unit.unit_id} has {unit.num_rows}; "
                "dray verify says which, dray verify --repair moves the unit's files away"
            )
        attempt = read_receipt(run_directory, unit.unit_id).attempt + 1
        if added.num_rows:
            shared = engine_of(before.generations.schema).items() & dict(engine or {}).items()
            work = work_of(before.generations.schema)  # that of the first time, which wrote most of the rows
            receipt, source = Receipt(unit.unit_id, counts, attempt), provenance(run_directory, unit)
            content = part_content(after, receipt, dict(shared), work, source)
            replace_file(part, content, run_directory.temporary)
        if not failed:
            errors_path.remove()
        elif failed != had_failed or before.num_stale_errors:
            table = errors_table(failed, run_directory.id_type, run_directory.column_sets)
            replace_file(errors_path, to_parquet(table), run_directory.temporary)
    num_again = sum(error.row_id in again for error in failed)
    return Receipt(unit.unit_id, count_generations(added, num_again), attempt, seconds=seconds)
