"""Amend a committed unit: rows that failed, and were tried again, move from its error rows to its part.

The new part replaces the old one whole, and only then the error rows are replaced or deleted. A process that dies in
between leaves rows in both files. Data wins: such a row counts as generated wherever a run is read, and the next
amendment of the unit deletes its error row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from pipeline.counts import count_generations
from pipeline.errors import ErrorRow
from pipeline.inputs.units import WorkUnit
from pipeline.run.commit import Receipt, commit_lock, engine_of, part_content, read_receipt, work_of
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import in_row_order, read_unit_rows, without_rows_of
from pipeline.schema import errors_table
from pipeline.storage.parquet import to_parquet
from pipeline.storage.whole_file import replace_file


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
                "jobs.verify says which, jobs.verify --repair moves the unit's files away"
            )
        attempt = read_receipt(run_directory, unit.unit_id).attempt + 1
        if added.num_rows:
            shared = engine_of(before.generations.schema).items() & dict(engine or {}).items()
            work = work_of(before.generations.schema)  # that of the first time, which wrote most of the rows
            content = part_content(after, Receipt(unit.unit_id, counts, attempt), dict(shared), work)
            replace_file(part, content, run_directory.temporary)
        if not failed:
            errors_path.remove()
        elif failed != had_failed or before.num_stale_errors:
            replace_file(errors_path, to_parquet(errors_table(failed, run_directory.id_type)), run_directory.temporary)
    num_again = sum(error.row_id in again for error in failed)
    return Receipt(unit.unit_id, count_generations(added, num_again), attempt, seconds=seconds)
