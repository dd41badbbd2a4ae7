"""Commit a unit: its part appears whole or not at all, once, and the part's existence is the commit.

Error rows are written before the part, so whoever sees the part sees the error rows that belong to it. On a
local disk a lock file keeps the two together when two attempts at one unit end in the same moment; the link
decides without it. On an object store both attempts put the same generations; where they failed on different rows,
`check.check_run` names a row that is then in neither place, and a row in both counts as generated.

`amend.amend_part` is the only one that replaces a part.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.counts import Counts
from pipeline.inputs.units import WorkUnit
from pipeline.run.directory import COMMIT_LOCK, RunDirectory
from pipeline.run.receipt import Receipt
from pipeline.storage.location import Location
from pipeline.storage.whole_file import create_file, replace_file

_FOOTER_KEY = b"dray"
_ROWS_PER_ROW_GROUP = 8192


def commit_part(
    run_directory: RunDirectory,
    unit: WorkUnit,
    generations: pa.Table,
    errors: pa.Table | None,
    counts: Counts,
    attempt: int,
    seconds: float | None = None,
    engine: Mapping[str, str | bool | int] | None = None,
) -> Receipt:
    """The receipt of the unit, whose rows are on disk when this returns, from this attempt or another.

    `generations` may have no rows (all failed); `errors` None or no rows means that none failed. Raises
    OSError if the disk or store fails: nothing is committed then, and the unit can be tried again. `engine` are facts
    about what generated the rows, for the footer: engines of one run may differ.
    """
    num_errors = errors.num_rows if errors is not None else 0
    assert (counts.num_rows, counts.num_errors) == (unit.num_rows, num_errors), "rows in must equal rows out"
    assert counts.num_generations == generations.num_rows
    receipt = Receipt(unit.unit_id, counts, attempt, seconds=seconds)
    content = part_content(generations, receipt, engine)
    part, errors_path = run_directory.part_path(unit.unit_id), run_directory.errors_path(unit.unit_id)
    with commit_lock(run_directory):
        if not part.exists():
            if errors is not None and num_errors:
                replace_file(errors_path, to_parquet(errors), run_directory.temporary)
            elif run_directory.location.is_local:
                # An attempt that failed on some row, and then died, left them. Without a lock they may be of one that
                # commits at this moment; rows that are in data, too, count as generated.
                errors_path.remove()
            if create_file(part, content, run_directory.temporary):
                return receipt
    return replace(read_receipt(run_directory, unit.unit_id), already_committed=True)


def read_receipt(run_directory: RunDirectory, unit_id: int) -> Receipt:
    """The receipt of a committed unit, from its part's footer.

    Raises FileNotFoundError if the unit is not committed, ValueError if its part is not one of ours or is
    damaged.
    """
    part = run_directory.part_path(unit_id)
    try:
        return receipt_of(part.retrying("reading", lambda: _footer_schema(part)))
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{part.name}: not a part of a run, or damaged: {error}") from error


def receipt_of(schema: pa.Schema) -> Receipt:
    """The receipt in the schema of a part. Raises KeyError, TypeError or ValueError if there is none."""
    footer = json.loads((schema.metadata or {})[_FOOTER_KEY])
    return Receipt(footer["unit"], Counts.from_dict(footer["counts"]), footer["attempt"])


def engine_facts(schema: pa.Schema) -> dict[str, str | bool | int]:
    """The facts in the schema of a part about what generated it; none where there are none."""
    facts: dict[str, str | bool | int] = json.loads((schema.metadata or {}).get(_FOOTER_KEY, b"{}")).get("engine", {})
    return facts


def part_content(
    generations: pa.Table, receipt: Receipt, engine: Mapping[str, str | bool | int] | None = None
) -> bytes:
    """The part of a unit: its generations, and in the footer its receipt and facts about what generated it."""
    footer = {
        "unit": receipt.unit_id,
        "counts": receipt.counts.to_dict(),
        "attempt": receipt.attempt,
        "engine": dict(engine or {}),
    }
    return to_parquet(generations.replace_schema_metadata({_FOOTER_KEY: json.dumps(footer)}))


def _footer_schema(part: Location) -> pa.Schema:
    with part.open_file() as file:
        return pq.ParquetFile(file).schema_arrow


def to_parquet(table: pa.Table) -> bytes:
    """The table as a Parquet file, as all files of a run are written."""
    sink = pa.BufferOutputStream()
    # Checksums let `check_run` find a flipped bit in any column, not only in those whose numbers it adds up.
    pq.write_table(table, sink, compression="zstd", row_group_size=_ROWS_PER_ROW_GROUP, write_page_checksum=True)
    return sink.getvalue().to_pybytes()


@contextmanager
def commit_lock(run_directory: RunDirectory) -> Iterator[None]:
    """Hold the run's commit lock; where there are no locks (object stores, some mounts) go on without one."""
    if not run_directory.location.is_local:
        yield
        return
    with open(run_directory.temporary.child(COMMIT_LOCK).path, "ab") as lock:
        with suppress(OSError):  # a mount without locks: the link still lets one attempt win
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
