"""Generation tables in row order, whatever columns they carry."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.inputs.carried import JSON_TEXT
from pipeline.run.row_order import in_row_order, last_whole_row, without_rows

_INT = pa.int64()
_CARRIED = {
    "json": (JSON_TEXT, '{"a": 1}'),
    "struct": (pa.struct([("x", pa.list_(pa.int8()))]), {"x": [1, 2]}),
    "map": (pa.map_(pa.string(), pa.int64()), [("k", 5)]),
    "view": (pa.string_view(), "text"),
    "large": (pa.large_list(pa.float16()), [1.5]),
    "null": (pa.null(), None),
    "fixed": (pa.list_(pa.int32(), 2), [1, 2]),
}


def _table(keys: list[tuple[int, int]], type_: pa.DataType = _INT, value: object = 1) -> pa.Table:
    schema = pa.schema([("row_id", pa.int64()), ("sample", pa.int32()), ("carried", type_)])
    rows = [{"row_id": row_id, "sample": sample, "carried": value} for row_id, sample in keys]
    return pa.Table.from_pylist(rows, schema=schema)


def _keys(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["row_id"].to_pylist(), table["sample"].to_pylist(), strict=True))


@pytest.mark.parametrize("kind", _CARRIED)
def test_tables_are_merged_by_row_and_sample_with_carried_columns_of_every_type(kind: str) -> None:
    type_, value = _CARRIED[kind]
    merged = in_row_order(
        _table([(1, 0), (1, 1), (9, 0)], type_, value), _table([(4, 1), (4, 0), (0, 0)], type_, value)
    )
    assert _keys(merged) == [(0, 0), (1, 0), (1, 1), (4, 0), (4, 1), (9, 0)]
    assert merged["carried"].to_pylist() == [value] * 6
    assert _keys(without_rows(merged, {4, 9})) == [(0, 0), (1, 0), (1, 1)]


def test_a_table_in_order_is_taken_as_it_is() -> None:
    table = _table([(1, 0), (2, 0)])
    assert in_row_order(table).equals(table)
    assert in_row_order(table.slice(0, 0)).num_rows == 0
    assert without_rows(table, {1, 2}).num_rows == 0


@pytest.mark.parametrize(
    ("num_rows", "taken"), [(-1, 2), (0, 2), (1, 2), (2, 2), (3, 3), (4, 3), (5, 3), (6, 6), (99, 6)]
)
def test_an_input_rows_samples_are_never_parted(num_rows: int, taken: int) -> None:
    table = _table([(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)])
    assert last_whole_row(table, num_rows) == taken
