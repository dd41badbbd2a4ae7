"""Generation tables in the order of their rows: by row_id, then sample.

Only slices of tables are taken: Arrow's own sort and filter do not know every type that a carried column can have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pyarrow as pa


def in_row_order(*tables: pa.Table) -> pa.Table:
    """The rows of all these tables of one schema, by row_id and sample."""
    keys = sorted(
        (row_id, sample, number, index)
        for number, table in enumerate(tables)
        for index, (row_id, sample) in enumerate(
            zip(table["row_id"].to_pylist(), table["sample"].to_pylist(), strict=True)
        )
    )
    return _pick(tables, ((number, index) for _, _, number, index in keys))


def without_rows(table: pa.Table, row_ids: Collection[Any]) -> pa.Table:
    """The table without the rows of these ids."""
    return _pick([table], ((0, i) for i, row_id in enumerate(table["row_id"].to_pylist()) if row_id not in row_ids))


def last_whole_row(table: pa.Table, num_rows: int) -> int:
    """How many of the first `num_rows` to take so that no input row's samples are parted; all of the first one's at
    least.
    """
    row_ids = table["row_id"].to_pylist()
    if num_rows >= len(row_ids):
        return len(row_ids)
    end = max(0, num_rows)
    while end > 0 and row_ids[end] == row_ids[end - 1]:
        end -= 1
    if end == 0:
        return next((i for i, row_id in enumerate(row_ids) if row_id != row_ids[0]), len(row_ids))
    return end


def _pick(tables: Sequence[pa.Table], places: Iterable[tuple[int, int]]) -> pa.Table:
    """The rows at these places (table, row), in this order."""
    slices: list[list[int]] = []  # table, first row, number of rows
    for number, index in places:
        if slices and slices[-1][0] == number and sum(slices[-1][1:]) == index:
            slices[-1][2] += 1
        else:
            slices.append([number, index, 1])
    if not slices:
        return tables[0].slice(0, 0)
    picked = [tables[number].slice(start, length) for number, start, length in slices]
    return picked[0] if len(picked) == 1 else pa.concat_tables(picked)
