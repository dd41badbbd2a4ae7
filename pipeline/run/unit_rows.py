"""The rows of committed units, in order, generations and rows that failed; and tallies of what they add up to.

A row is in one of the two. If a `dray retry` died between writing a row's generations and deleting its error row, the
row is in both files: data wins, and the stale error row is left out here.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from pipeline.counts import Sums
from pipeline.inputs.units import WorkUnit
from pipeline.inputs.values import plain_values, shown_values
from pipeline.run.directory import RunDirectory
from pipeline.run.reading import READS_AT_ONCE, by_chunks, read_ahead
from pipeline.storage.location import Location
from pipeline.storage.parquet import read_columns, table_of

_Sum = TypeVar("_Sum", bound=Sums)


class IncompleteRunError(FileNotFoundError):
    """The run has units that are not committed."""


@dataclass(frozen=True)
class UnitRows:
    """The rows of a committed unit, in order. `num_stale_errors` counts the error rows that were left out."""

    generations: pa.Table
    errors: pa.Table
    num_stale_errors: int


def read_unit_rows(
    run_directory: RunDirectory, unit: WorkUnit, *, has_errors: bool = True, columns: Sequence[str] | None = None
) -> UnitRows:
    """Read the unit's rows, with these columns of its generations (None: all; row_id and sample must be among them).

    `has_errors` says whether its errors file may exist. Raises FileNotFoundError if the unit is not committed,
    ValueError, naming the file, if one is damaged, and OSError if the storage does not answer.
    """
    # The error rows are read first, so that a row that a retry moves meanwhile is seen in both files, not in neither.
    written = read_errors(run_directory, unit.unit_id) if has_errors else run_directory.errors_schema.empty_table()
    part = run_directory.part_path(unit.unit_id)
    generations = _read(part, columns)
    if not {"row_id", "sample"} <= set(generations.schema.names):
        raise ValueError(f"{part.name}: its columns are not those of a generations table: {generations.schema.names}")
    generations = in_row_order(generations)
    errors = without_rows_of(generations, written).sort_by("row_id")
    return UnitRows(generations, errors, written.num_rows - errors.num_rows)


def read_errors(run_directory: RunDirectory, unit_id: int) -> pa.Table:
    """Read the error rows in the unit's errors file; none if there is no such file. Raises as `read_unit_rows` does."""
    location = run_directory.errors_path(unit_id)
    try:
        errors = _read(location, None)
    except FileNotFoundError:
        return run_directory.errors_schema.empty_table()
    if not errors.schema.equals(run_directory.errors_schema):
        raise ValueError(f"{location.name}: its columns are not those of an errors table: {errors.schema.names}")
    return errors


def each_unit(
    run_directory: RunDirectory, units: Iterable[WorkUnit], columns: Sequence[str] | None = None
) -> Iterator[UnitRows]:
    """Yield the rows of each of these units, in their order; a few units are in memory at once."""
    failed = run_directory.failed_unit_ids()

    def read(unit: WorkUnit) -> UnitRows:
        return read_unit_rows(run_directory, unit, has_errors=unit.unit_id in failed, columns=columns)

    return read_ahead(read, units)


def refuse_incomplete(run_directory: RunDirectory) -> None:
    """Raise IncompleteRunError, naming the first missing unit, if a unit is not committed."""
    missing = iter(run_directory.missing_units())
    if (first := next(missing, None)) is not None:
        num_missing = 1 + sum(1 for _ in missing)
        raise IncompleteRunError(
            f"{run_directory.location.name}: {num_missing} of {run_directory.manifest.num_units} units are missing, "
            f"the first is unit {first.unit_id} (rows {first.row_start + 1} on of {first.file}); "
            "dray generate with the run's configuration does them"
        )


def in_row_order(*tables: pa.Table) -> pa.Table:
    """Return the rows of these tables of one schema in the order of row_id and sample."""
    table = pa.concat_tables(tables)
    keys = list(zip(table["row_id"].to_pylist(), table["sample"].to_pylist(), strict=True))
    return pick_rows(table, sorted(range(len(keys)), key=keys.__getitem__))


def without_rows_of(other: pa.Table, table: pa.Table) -> pa.Table:
    """Return the rows of `table` whose row_id is not in `other`."""
    if not table.num_rows:
        return table
    row_ids = set(other["row_id"].to_pylist())
    return pick_rows(table, [i for i, row_id in enumerate(table["row_id"].to_pylist()) if row_id not in row_ids])


def rows_with_id(table: pa.Table, row_id: int) -> pa.Table:
    """Return the rows with this id, which stand one behind the other."""
    row_ids = table["row_id"].to_pylist()
    return table.slice(row_ids.index(row_id), row_ids.count(row_id)) if row_id in row_ids else table.slice(0, 0)


def _read(location: Location, columns: Sequence[str] | None) -> pa.Table:
    content = location.read_bytes()  # before it is parsed: a store that does not answer is not damage
    try:
        return table_of(content, columns)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(
            f"{location.name}: damaged, or no Parquet file ({error}); dray verify --repair moves it away, "
            "and dray generate then redoes its unit"
        ) from error


def pick_rows(table: pa.Table, indices: Sequence[int]) -> pa.Table:
    """Return the rows with these numbers, in this order.

    It only slices and concatenates: Arrow's own sort and filter do not know every type that a carried column can have.
    """
    runs = [list(run) for _, run in groupby(enumerate(indices), lambda pair: pair[1] - pair[0])]  # consecutive rows
    return pa.concat_tables([table.slice(0, 0), *(table.slice(run[0][1], len(run)) for run in runs)])


class Value(NamedTuple):
    """A value of a column, as people read it. Values are in order: numbers, then all others by their text."""

    is_text: bool
    rank: Any
    shown: str


def tally(
    run_directory: RunDirectory, by: Sequence[str], columns: Sequence[str], count: Callable[[pa.Table], _Sum]
) -> dict[tuple[str, ...], _Sum]:
    """Return what `count` finds in the rows with each combination of values of the columns `by`, in their order.

    Only `by` and the `columns` that `count` needs are read, of a few parts at a time. Raises ValueError for a column
    that the output does not have and for a damaged part, which it names, and OSError.
    """
    refuse_unknown_columns(run_directory, by)
    unit_ids = run_directory.committed_unit_ids()
    count_parts = partial(_tally, by, [*dict.fromkeys([*by, *columns])], count)
    sums: dict[tuple[Value, ...], _Sum] = {}
    for found in by_chunks(count_parts, run_directory, unit_ids, len(unit_ids)):
        _add(sums, found.items())
    return {tuple(value.shown for value in values): sums[values] for values in sorted(sums)}


def _tally(
    by: Sequence[str],
    wanted: Sequence[str],
    count: Callable[[pa.Table], _Sum],
    run_directory: RunDirectory,
    unit_ids: Iterable[int],
) -> dict[tuple[Value, ...], _Sum]:
    sums: dict[tuple[Value, ...], _Sum] = {}
    parts = map(run_directory.part_path, unit_ids)
    for table in read_ahead(lambda part: read_columns(part, wanted), parts, READS_AT_ONCE):
        _add(sums, ((values, count(rows)) for values, rows in grouped(table, by)))
    return sums


def _add(sums: dict[tuple[Value, ...], _Sum], found: Iterable[tuple[tuple[Value, ...], _Sum]]) -> None:
    for values, counted in found:
        sums[values] = sums[values] + counted if values in sums else counted


def grouped(table: pa.Table, by: Sequence[str]) -> Iterator[tuple[tuple[Value, ...], pa.Table]]:
    """Yield the rows of each combination of values of these columns."""
    indices: dict[tuple[Value, ...], list[int]] = {}
    columns = [_values(table, name) for name in by]
    for index, values in enumerate(zip(*columns, strict=True) if by else [()] * table.num_rows):
        indices.setdefault(values, []).append(index)
    for values, of_group in indices.items():
        yield values, pick_rows(table, of_group)


def refuse_unknown_columns(run_directory: RunDirectory, names: Sequence[str]) -> None:
    """Raise ValueError, with the names that there are, for a column that the output of a run does not have."""
    there = run_directory.generations_schema.names
    for name in names:
        if name not in there:
            raise ValueError(
                f"the output has no column {name!r}; it has {', '.join(there)}. A new run takes others over from the "
                "input with input.carry_columns"
            )


def _values(table: pa.Table, name: str) -> list[Value]:
    pairs = zip(plain_values(table[name]), shown_values(table[name]), strict=True)
    return [
        Value(False, plain, shown)
        if isinstance(plain, int | float) and not math.isnan(plain)
        else Value(True, shown, shown)
        for plain, shown in pairs
    ]
