"""Tables as rows: what a column of each type is in a prompt, and that a carried one is what the table has, exactly."""

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.counts import COUNTED_COLUMNS, count_generations
from pipeline.errors import ErrorRow, RowError
from pipeline.export.best import pick_best
from pipeline.export.compacted_file import Cut
from pipeline.export.compaction import Compaction
from pipeline.export.jsonl import export_jsonl
from pipeline.inputs.carried import carried_types, id_type, types_from_dict, types_to_dict
from pipeline.inputs.files import list_files
from pipeline.inputs.options import InputOptions
from pipeline.inputs.records import to_rows
from pipeline.inputs.rows import InputRow, RowPosition, read_row, read_unit
from pipeline.inputs.units import plan_units
from pipeline.inputs.values import plain_values
from pipeline.run.commit import amend_part, commit_part
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import read_unit_rows, tally
from pipeline.schema import errors_table, generations_table
from pipeline.storage.location import Location
from tests.pipeline.made_up import RUN, error, failed, generation, read_all, sound

_IDS = pa.array([uuid.UUID(int=1).bytes, None, uuid.UUID(int=2).bytes], pa.uuid())
_PRICES = [Decimal("1.50"), None, Decimal("-2")]

EVERY_TYPE: dict[str, pa.Array] = {
    **{f"int {type_}": pa.array([1, None, 2], type_) for type_ in (pa.int8(), pa.uint16(), pa.int64(), pa.uint64())},
    **{f"float {type_}": pa.array([1.5, None, 2], type_) for type_ in (pa.float32(), pa.float64())},
    "nan": pa.array([float("nan"), None, float("-inf")]),
    "nans": pa.array([float("nan"), None, float("nan")]),
    "half": pa.array([np.float16(1.5), None, np.float16(2)], pa.float16()),
    "bool": pa.array([True, None, False]),
    "bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0], pa.int8())),
    "null": pa.nulls(3),
    **{f"text {t}": pa.array(["é", None, "b"], t) for t in (pa.string(), pa.large_string(), pa.string_view())},
    **{f"bytes {t}": pa.array([b"\xff", None, b"b"], t) for t in (pa.binary(), pa.large_binary(), pa.binary_view())},
    "fixed bytes": pa.array([b"\xff\0", None, b"ab"], pa.binary(2)),
    "category": pa.array(["a", None, "b"]).dictionary_encode(),
    "categories": pa.array([["a"], None, ["b", None]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', None, "2"])),
    "uuid": _IDS,
    "uuids": pa.ListArray.from_arrays(pa.array([0, 1, None, 3], pa.int32()), _IDS),
    **{f"decimal {t}": pa.array(_PRICES, t) for t in (pa.decimal32(5, 2), pa.decimal128(30, 2), pa.decimal256(60, 2))},
    "date": pa.array([20_000, None, -1], pa.date32()),
    "date64": pa.array([20_000 * 86_400_000, None, 0], pa.date64()),
    "late date": pa.array([20_000, None, 2_932_896], pa.date32()),
    **{f"time {t}": pa.array([1, None, 86_399], t) for t in (pa.time32("s"), pa.time32("ms"), pa.time64("ns"))},
    **{f"at {u}": pa.array([1, None, 2], pa.timestamp(u)) for u in ("s", "ms", "us", "ns")},
    "at utc": pa.array([1, None, -1], pa.timestamp("ns", "UTC")),
    "at zone": pa.array([1, None, 1_750_000_000], pa.timestamp("s", "Europe/Berlin")),
    **{f"took {u}": pa.array([1, None, -1], pa.duration(u)) for u in ("s", "ns")},
    "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "large list": pa.array([[1], None, [2, 3]], pa.large_list(pa.int32())),
    "list view": pa.array([[1], None, [2, 3]], pa.list_view(pa.int32())),
    "fixed list": pa.array([[1, 2], None, [2, 3]], pa.list_(pa.int32(), 2)),
    "map": pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int64())),
    "struct": pa.array([{"t": 1, "u": None}, None, {"t": None}], pa.struct([("t", pa.time64("ns")), ("u", pa.int8())])),
    "deep": pa.array(
        [[{"m": [("k", [1])]}], None, [None, {"m": None}]],
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.duration("ns"))))])),
    ),
}


Write = Callable[[str, bytes], str]


@pytest.fixture
def rows_of(tmp_path: Path) -> Callable[..., list[InputRow | ErrorRow]]:
    """A function that writes a table as Parquet and returns its rows."""

    def read(table: pa.Table, options: InputOptions | None = None) -> list[InputRow | ErrorRow]:
        pq.write_table(table, tmp_path / "in.parquet")
        return read_all(list_files(str(tmp_path / "in.parquet")), options or InputOptions(), 100)

    return read


# What an object is, and what its row says of it: the fields that other rows have are none of its own.
STRUCTS: list[tuple[list[Any], list[Any]]] = [
    ([{"a": 1}, {"b": 2}, {}, None], [{"a": 1}, {"b": 2}, {}, None]),
    ([{"a": {"b": {"c": 1}}}, {"a": {"b": {"d": 1}}}], [{"a": {"b": {"c": 1}}}, {"a": {"b": {"d": 1}}}]),
    ([[{"a": 1}, {"b": 2}], [None, {}]], [[{"a": 1}, {"b": 2}], [None, {}]]),
    ([[1, None], []], [[1, None], []]),  # an item that is null is a value
    ([{"l": [None, "x"]}, {"m": 1}], [{"l": [None, "x"]}, {"m": 1}]),
    # The content of a message is one of its own fields: templates ask whether it is null.
    ([{"role": "a", "content": None, "name": None}], [{"role": "a", "content": None}]),
    ([{"content": None, "x": 1}], [{"x": 1}]),
]


@pytest.mark.parametrize(("values", "expected"), STRUCTS)
def test_an_object_has_the_fields_of_its_own_row_alone(values, expected):
    array = pa.array(values)
    assert plain_values(array) == expected
    assert plain_values(array.slice(1)) == expected[1:]
    assert plain_values(pa.chunked_array([array, array.slice(1)])) == expected + expected[1:]


def test_a_map_is_an_object_that_keeps_its_own_nulls():
    type_ = pa.map_(pa.string(), pa.map_(pa.int32(), pa.float32()))
    cells = pa.array([[("a", [(1, 0.5), (2, None)]), ("b", None)], None, [("c", [])]], type_)
    expected = [{"a": {"1": 0.5, "2": None}, "b": None}, None, {"c": {}}]
    assert plain_values(cells) == expected
    assert plain_values(cells.slice(2)) == expected[2:]


_MAP = pa.map_(pa.binary(), pa.int64())
_NO_TEXT = pa.array([b"a", b"\xff"]).view(pa.string())
BAD_CELLS = {
    "a map has a key twice, or one that is no text: ['a', 'a']": pa.array([[("a", 1)], [("a", 1), ("a", 2)]], _MAP),
    r"a map has a key twice, or one that is no text: [b'\xff']": pa.array([[("a", 1)], [(b"\xff", 2)]], _MAP),
    "'utf-8' codec can't decode byte 0xff in position 0": pa.DictionaryArray.from_arrays([0, 1], _NO_TEXT),
    "values of the type month_day_nano_interval have no form as text": pa.array([None, pa.MonthDayNano([1, 2, 3])]),
}


@pytest.mark.parametrize("problem", BAD_CELLS)
def test_a_cell_without_a_plain_value_fails_its_row_alone(problem):
    first, bad = to_rows(pa.table({"m": BAD_CELLS[problem]}))
    assert isinstance(bad, RowError)
    assert f"column 'm' cannot be read: {problem}" in bad.message
    assert isinstance(first, RowError) == problem.startswith("values of the type")


TEXTS = {
    "text binary": (pa.array(["café".encode()]), "café"),
    "text dictionary": (pa.array(["café"]).dictionary_encode(), "café"),
    "uuid": (EVERY_TYPE["uuid"].slice(0, 1), "00000000-0000-0000-0000-000000000001"),
    "price": (pa.array([Decimal("1.50")]), "1.50"),
    "small price": (pa.array([Decimal("0.0000001000")]), "0.0000001000"),
    "day": (pa.array([20_455], pa.date32()), "2026-01-02"),
    "at": (pa.array([1_767_323_045_000_000_001], pa.timestamp("ns")), "2026-01-02T03:04:05.000000001"),
    "at in berlin": (pa.array([1_767_323_045], pa.timestamp("s", "Europe/Berlin")), "2026-01-02T04:04:05+01:00"),
    "time": (pa.array([11_045_500], pa.time32("ms")), "03:04:05.500000"),
    "took": (pa.array([93_784_500], pa.duration("ms")), "PT93784.500000S"),
    "half": (pa.array([1.5], pa.float16()), "1.5"),
    "days": (pa.array([[20_455, None]], pa.list_(pa.date32())), '["2026-01-02", null]'),
    "object": (pa.array([{"price": Decimal("1.50"), "raw": b"x"}]), '{"price": "1.50", "raw": "x"}'),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_typed_value_is_its_plain_text_in_prompts_ids_and_columns(name, rows_of):
    cell, text = TEXTS[name]
    options = InputOptions(prompt_template="<{c}>", id_column="c", template_columns=("c",))
    (row,) = rows_of(pa.table({"c": cell}), options)
    assert (sound(row).prompt, sound(row).user_id) == (f"<{text}>", text)
    assert sound(row).columns["c"] in (text, 1.5, *([json.loads(text)] if text[0] in "[{" else []))


@pytest.mark.parametrize("column", ["prompt", "key", "mood", "messages", "sampling", "tools"])
def test_bytes_that_are_no_text_are_refused_by_the_name_of_their_column(column, rows_of):
    plain = {"key": ["k"] * 2, "mood": ["m"] * 2, "prompt": ["p"] * 2}
    nested = [{"a": [b"x"]}, {"a": [b"\xff"]}]
    table = pa.table({**plain, column: [b"x", b"\xff"] if column in plain else nested})
    options = InputOptions(id_column="key", template_columns=("mood",))
    bad = failed(rows_of(table, options)[1])
    assert bad.message.startswith(f"column {column!r} has bytes that are not UTF-8, which are no text; write text")
    assert bad.id == (None if column == "key" else "k")


def test_bytes_that_are_no_text_are_carried_beside_a_prompt_of_bytes(rows_of):
    table = pa.table({"prompt": [b"hello"], "image": [b"\xff\0"]})
    (row,) = rows_of(table, InputOptions(carry_columns=("image",), template_columns=()))
    assert (sound(row).prompt, sound(row).carried["image"].to_pylist()) == ("hello", [b"\xff\0"])
    assert sound(row).columns["image"] == b"\xff\0"  # what a program gets


TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "calc", "parameters": {"properties": {"expr": {"type": "string"}}}}},
]
CALLS = [
    [{"id": "1", "function": {"name": "weather", "arguments": {"city": "Rome"}}}],
    [{"id": "2", "function": {"name": "calc", "arguments": {"expr": "1+1"}}}],
]


def test_messages_tools_and_options_of_a_table_are_those_of_the_row_as_json_has_them(rows_of):
    records = [
        {
            "messages": [
                {"role": "user", "content": "q", "meta": {"ab"[number]: 1}},
                {"role": "assistant", "content": None, "tool_calls": CALLS[number]},
                {"role": "tool", "content": [{"type": "text", "text": "r"}][0]["text"], "tool_call_id": "1"},
            ],
            "tools": [TOOLS[number]],
            "chat_template_kwargs": [{"documents": [{"title": "t"}]}, {"date": "today"}][number],
            "sampling": [{"structured": {"regex": "a"}}, {"logit_bias": {"5": 1.0}, "seed": 3}][number],
        }
        for number in (0, 1)
    ]
    for record, row in zip(records, rows_of(pa.Table.from_pylist(records)), strict=True):
        assert sound(row).messages == record["messages"]
        assert sound(row).overrides == record["sampling"]
        assert sound(row).asked == {name: record[name] for name in ("tools", "chat_template_kwargs")}


def test_messages_may_be_maps_and_json_text_keeps_its_own_nulls(rows_of):
    pairs = [[("role", "user"), ("content", "hi")]]
    (row,) = rows_of(pa.table({"messages": pa.array([pairs], pa.list_(pa.map_(pa.string(), pa.string())))}))
    assert sound(row).messages == [{"role": "user", "content": "hi"}]
    text = '[{"role": "user", "content": null, "x": null}]'
    for cell in (
        pa.array([text]),
        pa.array([text.encode()]),
        EVERY_TYPE["json"].from_storage(pa.json_(), pa.array([text])),
    ):
        (row,) = rows_of(pa.table({"messages": cell}))
        assert sound(row).messages == json.loads(text)


WHOLE = {"max_tokens": 2.0, "seed": 7.0, "n": 1.0, "stop_token_ids": [5.0], "logit_bias": {"5": 2.0}, "top_p": 1.0}


def test_whole_floats_of_sampling_are_integers_and_nan_is_none(rows_of, write):
    records = [{"prompt": "x", "sampling": WHOLE}, {"prompt": "y", "sampling": {"seed": float("nan"), "n": 1.5}}]
    lines = "\n".join(map(json.dumps, records)).encode()
    (unit,) = plan_units(list_files(write("p.jsonl", lines)), InputOptions(format="jsonl"), 9)
    for rows in (rows_of(pa.Table.from_pylist(records)), list(read_unit(unit, InputOptions(format="jsonl"), {}))):
        whole, odd = (sound(row).overrides for row in rows)
        assert (whole, odd) == (WHOLE, {"n": 1.5})
        assert [type(whole[name]) for name in ("max_tokens", "seed", "n")] == [int] * 3
        assert type(whole["stop_token_ids"][0]) is int


def test_a_schema_keeps_its_floats_and_a_float_too_large_to_be_exact_stays_one(rows_of):
    sampling = {"structured": {"json_schema": {"const": 1.0}}, "seed": 2.0**54}
    (row,) = rows_of(pa.table({"prompt": ["x"], "sampling": [sampling]}))
    assert sound(row).overrides == sampling
    assert type(sound(row).overrides["seed"]) is float
    assert type(sound(row).overrides["structured"]["json_schema"]["const"]) is float


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_whole_ids_that_a_gap_made_floats_are_written_without_a_fraction(form, rows_of):
    records = [{"prompt": "x", "key": key} for key in (1.0, None, float("nan"), 2.5, 1e16)]
    if form == "parquet":
        rows = rows_of(pa.Table.from_pylist(records), InputOptions(id_column="key"))
    else:
        options = InputOptions(format="jsonl", id_column="key")
        rows = [read_row(record, RowPosition(0, "", 0), options, {}) for record in records]
    assert [sound(row).user_id for row in rows] == ["1", None, None, "2.5", "1e+16"]


def test_a_gap_in_a_prompt_template_is_an_error_row(rows_of):
    table = pa.table({"x": [1.5, float("nan")]})
    good, gap = rows_of(table, InputOptions(prompt_template="{x}"))
    assert sound(good).prompt == "1.5"
    assert failed(gap).message == "prompt_template: column 'x' is NaN"


def _generations(rows: list[InputRow | ErrorRow]) -> list[dict[str, Any]]:
    return [generation(sound(row).row_id) | {"draft_rounds": None} | sound(row).carried for row in rows]


def test_a_carried_column_of_any_type_comes_out_as_it_was_from_every_command(rows_of, tmp_path):
    """The second of three rows, which is null, fails at first, and is added by a retry."""
    table = pa.table({"prompt": ["x"] * 3, **EVERY_TYPE})
    options = InputOptions(carry_columns=tuple(EVERY_TYPE), template_columns=())
    first, null, last = rows_of(table, options)
    given = pq.read_table(tmp_path / "in.parquet").select(list(EVERY_TYPE))
    given = given.set_column(given.column_names.index("category"), "category", given["category"].cast(pa.string()))
    files, options = list_files(str(tmp_path / "in.parquet")), replace(options, format="parquet")
    types, (unit,) = carried_types(files, options), plan_units(files, options, 100)
    run = {**RUN, "carried": json.loads(json.dumps(types_to_dict(types)))}
    assert types_from_dict(run["carried"]) == types
    run_directory = RunDirectory.create(str(tmp_path / "run"), run, [unit])

    part = generations_table(_generations([first, last]), run_directory.generations_schema)
    commit_part(run_directory, unit, part, errors_table([error(unit, 1)]), attempt=0)
    amend_part(run_directory, unit, generations_table(_generations([null]), run_directory.generations_schema), [])

    def assert_same(found: pa.Table) -> None:
        for name in EVERY_TYPE:
            assert found.schema.field(name).type == given.schema.field(name).type, name
            assert found[name].combine_chunks().equals(given[name].combine_chunks()) or "nan" in name, name
            assert str(found[name].to_pylist()) == str(given[name].to_pylist()), name

    assert_same(pq.read_table(run_directory.part_path(0).path))
    assert_same(read_unit_rows(run_directory, unit).generations)
    compaction = Compaction(run_directory, Location.parse(str(tmp_path / "compacted")), Cut(max_rows=2))
    compaction.finish(list(compaction.files()))
    assert_same(pq.read_table(tmp_path / "compacted/data"))
    assert pick_best(run_directory, str(tmp_path / "best.parquet"), "num_rounds", "at ns").num_rows == 3
    assert_same(pq.read_table(tmp_path / "best.parquet"))

    export_jsonl(run_directory, str(tmp_path / "out.jsonl"), None)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    exported = {
        "json": [{"a": 1}, None, 2],
        "nan": [None] * 3,
        "nans": [None] * 3,
        "fixed bytes": ["/wA=", None, "YWI="],
    }
    for name, cells in EVERY_TYPE.items():
        if not name.startswith("bytes"):
            assert [line[name] for line in lines] == exported.get(name, plain_values(cells)), name
    groups = {name: tally(run_directory, [name], COUNTED_COLUMNS, count_generations) for name in EVERY_TYPE}
    assert {sum(each.num_generations for each in groups[name].values()) for name in EVERY_TYPE} == {3}
    seconds = "1970-01-01T00:00:00.00000000"
    assert [*groups["at ns"], *groups["nans"]] == [
        ("(none)",),
        (f"{seconds}1",),
        (f"{seconds}2",),
        ("(none)",),
        ("nan",),
    ]


def test_a_column_of_nothing_but_nulls_has_the_type_that_other_files_give_it(tmp_path):
    pq.write_table(pa.table({"prompt": ["x"], "kind": pa.nulls(1), "key": pa.nulls(1)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"prompt": ["y"], "kind": ["k"], "key": [7]}), tmp_path / "b.parquet")
    files = list_files(str(tmp_path))
    options = InputOptions(format="parquet", id_column="key", carry_columns=("kind",), template_columns=())
    assert (carried_types(files, options), id_type(files, options)) == ({"kind": pa.string()}, pa.int64())
    rows = read_all(files, options, 9)
    assert [sound(row).user_id for row in rows] == [None, 7]
    part = generations_table(_generations(rows), pa.schema([("kind", pa.string())]))
    assert part["kind"].to_pylist() == [None, "k"]
