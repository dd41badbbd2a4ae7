"""What a unit has come to: its generations, and the rows that failed. For whoever goes through a whole run.

A row is in one of the two. Where a `jobs.retry` died between writing a row's generations and deleting its error row,
the row is in both files: data wins, and the error row is left out here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline.inputs.units import WorkUnit
from pipeline.run.directory import RunDirectory
from pipeline.run.read_ahead import read_ahead
from pipeline.run.row_order import in_row_order
from pipeline.schema import ERRORS
from pipeline.storage.checked_parquet import table_of
from pipeline.storage.location import Location


class IncompleteRunError(FileNotFoundError):
    """The run has units that are not committed."""


@dataclass(frozen=True)
class UnitRows:
    """The rows of a committed unit, in order. `num_stale_errors` are error rows that were left out: data wins."""

    unit: WorkUnit
    generations: pa.Table
    errors: pa.Table
    num_stale_errors: int = 0


def read_unit_rows(
    run_directory: RunDirectory, unit: WorkUnit, *, has_errors: bool = True, columns: Sequence[str] | None = None
) -> UnitRows:
    """The rows of the unit, with these columns of its generations (None: all; row_id and sample must be among them).

    `has_errors` says whether its errors file may exist. Raises FileNotFoundError if the unit is not committed,
    ValueError, naming the file, if one is damaged, and OSError if the storage does not answer.
    """
    # The error rows first: should a retry move a row meanwhile, it is then seen in both files, not in neither.
    written = read_errors(run_directory, unit.unit_id) if has_errors else ERRORS.empty_table()
    part = run_directory.part_path(unit.unit_id)
    generations = _read(part, columns)
    if not {"row_id", "sample"} <= set(generations.schema.names):
        raise ValueError(f"{part.name}: its columns are not those of a generations table: {generations.schema.names}")
    generations = in_row_order(generations)
    errors = standing_errors(generations, written).sort_by("row_id")
    return UnitRows(unit, generations, errors, written.num_rows - errors.num_rows)


def standing_errors(generations: pa.Table, errors: pa.Table) -> pa.Table:
    """The error rows whose row is not among these generations: data wins."""
    generated = set(generations["row_id"].to_pylist())
    return errors.filter(pa.array([row_id not in generated for row_id in errors["row_id"].to_pylist()], pa.bool_()))


def read_errors(run_directory: RunDirectory, unit_id: int) -> pa.Table:
    """The error rows in the unit's errors file; none if there is no such file. Raises as `read_unit_rows` does."""
    location = run_directory.errors_path(unit_id)
    try:
        errors = _read(location, None)
    except FileNotFoundError:
        return ERRORS.empty_table()
    if not errors.schema.equals(ERRORS):
        raise ValueError(f"{location.name}: its columns are not those of an errors table: {errors.schema.names}")
    return errors


def each_unit(
    run_directory: RunDirectory, units: Iterable[WorkUnit], columns: Sequence[str] | None = None
) -> Iterator[UnitRows]:
    """The rows of each of these units, in their order; a few units are in memory at once."""
    failed = run_directory.failed_unit_ids()

    def read(unit: WorkUnit) -> UnitRows:
        return read_unit_rows(run_directory, unit, has_errors=unit.unit_id in failed, columns=columns)

    return read_ahead(read, units)


def refuse_incomplete(run_directory: RunDirectory) -> None:
    """Raise IncompleteRunError, naming the first missing unit, if a unit is not committed."""
    missing = iter(run_directory.missing_units())
    first = next(missing, None)
    if first is not None:
        num_missing = 1 + sum(1 for _ in missing)
        raise IncompleteRunError(
            f"{run_directory.location.name}: {num_missing} of {run_directory.manifest.num_units} units are missing, "
            f"the first is unit {first.unit_id} (rows {first.row_start} on of {first.file}); "
            "jobs.generate with the run's configuration does them"
        )


def _read(location: Location, columns: Sequence[str] | None) -> pa.Table:
    """The table of a Parquet file. First the bytes, then what they mean: a store that does not answer is no damage."""
    content = location.read_bytes()
    try:
        return table_of(content, columns)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(
            f"{location.name}: damaged, or no Parquet file ({error}); jobs.verify --repair moves it away, "
            "and jobs.generate then redoes its unit"
        ) from error
