"""The plain export writes one JSON line for every generation; rows that failed are in a file of their own."""

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.export.jsonl import export_jsonl
from pipeline.inputs.carried import JSON_TEXT, types_to_dict
from pipeline.run.commit import commit_part
from pipeline.run.directory import RunDirectory
from pipeline.schema import errors_schema, generations_schema
from tests.pipeline.made_up import RUN, generation, run_with_integer_ids, unit


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def test_every_generation_has_a_line_in_order_and_every_failed_row_has_one_in_the_errors_file(finished_run, tmp_path):
    out, failed = tmp_path / "out.jsonl", tmp_path / "failed.jsonl"
    assert export_jsonl(finished_run, str(out), str(failed)) == (10, 1)
    lines = _lines(out)
    assert [(line["row_id"] >> 32, line["row_id"] & 0xFF, line["sample"]) for line in lines] == [
        (unit_id, row, sample) for unit_id, row in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)] for sample in (0, 1)
    ]
    for_programs = ("token_ids", "logprobs", "top_logprobs")
    assert lines[0] == {name: value for name, value in generation(0).items() if name not in for_programs}
    (line,) = _lines(failed)
    assert (line["row_id"], line["id"], line["stage"], line["message"]) == ((1 << 32) + 1, "user-1", "read", "bad")


def test_carried_json_text_is_exported_as_json(tmp_path):
    columns: dict[str, tuple[pa.DataType, Any, Any]] = {  # type, value, and what is exported
        "any": (JSON_TEXT, '{"a": [1, "ü"]}', {"a": [1, "ü"]}),
        "score": (pa.float64(), float("nan"), None),
        "day": (pa.date32(), date(2026, 11, 21), "2026-11-21"),
        "price": (pa.decimal128(6, 2), Decimal("1.50"), "1.50"),
        "raw": (pa.binary(), b"\x00\xff", "AP8="),
        "nested": (pa.struct([("x", pa.list_(pa.float32()))]), {"x": [0.5, float("inf")]}, {"x": [0.5, None]}),
    }
    carried = {name: type_ for name, (type_, _, _) in columns.items()}
    values = {name: value for name, (_, value, _) in columns.items()}
    two_rows = unit(0, num_rows=2)
    run_directory = RunDirectory.create(str(tmp_path / "run"), {**RUN, "carried": types_to_dict(carried)}, [two_rows])
    rows = [generation(0) | values, generation(1) | dict.fromkeys(values)]
    table = pa.Table.from_pylist(rows, schema=generations_schema(carried))
    commit_part(run_directory, two_rows, table, errors_schema().empty_table(), attempt=0)
    export_jsonl(run_directory, str(tmp_path / "out.jsonl"), None)
    full, empty = _lines(tmp_path / "out.jsonl")
    assert {name: full[name] for name in carried} == {name: exported for name, (_, _, exported) in columns.items()}
    assert {name: empty[name] for name in carried} == dict.fromkeys(carried)
    assert full["text"] == "abcde"


def test_a_failed_export_writes_no_file_of_failed_rows_either(finished_run, tmp_path):
    Path(finished_run.part_path(1).path).write_bytes(b"damaged")
    with pytest.raises(ValueError, match="damaged"):
        export_jsonl(finished_run, str(tmp_path / "out/a.jsonl"), str(tmp_path / "out/b.jsonl"))
    assert list((tmp_path / "out").iterdir()) == []


def test_integer_ids_are_numbers_in_both_files(tmp_path):
    out, failed = tmp_path / "out.jsonl", tmp_path / "failed.jsonl"
    export_jsonl(run_with_integer_ids(str(tmp_path / "run")), str(out), str(failed))
    assert [line["id"] for line in _lines(out)] == [70]
    assert [line["id"] for line in _lines(failed)] == [71, 72]
