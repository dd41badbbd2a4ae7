"""Tallies: what the committed rows of a run add up to, for each combination of values of some columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from pipeline.counts import Sums
from pipeline.inputs.values import plain_values, shown_values
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import pick_rows, read_ahead
from pipeline.storage.parquet import read_columns

_Sum = TypeVar("_Sum", bound=Sums)


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
    wanted, sums = [*dict.fromkeys([*by, *columns])], dict[tuple[Value, ...], _Sum]()
    parts = map(run_directory.part_path, run_directory.committed_unit_ids())
    for table in read_ahead(lambda part: read_columns(part, wanted), parts):
        for values, rows in grouped(table, by):
            found = count(rows)
            sums[values] = sums[values] + found if values in sums else found
    return {tuple(value.shown for value in values): sums[values] for values in sorted(sums)}


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
            raise ValueError(f"the output has no column {name!r}; it has {', '.join(there)}")


def _values(table: pa.Table, name: str) -> list[Value]:
    pairs = zip(plain_values(table[name]), shown_values(table[name]), strict=True)
    return [Value(False, plain, shown) if _is_number(plain) else Value(True, shown, shown) for plain, shown in pairs]


def _is_number(plain: Any) -> bool:
    return isinstance(plain, int | float) and not math.isnan(plain)
