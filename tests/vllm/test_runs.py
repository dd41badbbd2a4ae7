"""Whole runs with vLLM: rows, counts, commits, reports and retries are those of every run."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from pipeline.run.commit import engine_of
from tests.jobs.runs import commits, errors, generations, problems
from tests.vllm.runs import VllmRun, good_rows

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> VllmRun:
    """A run with good rows, and one bad row for each stage at which a row can fail."""
    run = VllmRun(tmp_path_factory.mktemp("vllm"))
    rows = good_rows(20)
    bad = [
        "{no json",
        {"id": "empty", "kind": "a"},
        {"id": "params", "kind": "a", "prompt": "x", "sampling": {"temperature": -1}},
        {"id": "long", "kind": "a", "prompt": "word " * 400},
        {"id": "min_p", "kind": "a", "prompt": "x", "sampling": {"min_p": 0.5}},
    ]
    run.read([*rows[:7], *bad, *rows[7:]])
    code, printed = run.generate()
    assert code == 0, printed
    return run


def test_every_row_is_in_data_or_in_errors_once_and_all_counts_agree(run: VllmRun) -> None:
    assert problems(run.output) == []
    assert len(generations(run.output)) == 20
    stages = [row["stage"] for row in errors(run.output)]
    assert stages == ["read", "read", "params", "generate", "generate"]
    assert "sampling.min_p does not work in vLLM beside drafts" in errors(run.output)[-1]["message"]


def test_run_json_the_report_and_every_part_name_the_engine(run: VllmRun) -> None:
    assert run.json("run.json")["exact"] == "no"
    assert run.json("run.json")["versions"]["vllm"]
    report = run.json("report.json")
    assert report["exact"] == "no"
    (engine,) = report["engines"]
    assert (engine["backend"], engine["arguments"]) == ("vllm", "enforce_eager=True")
    for part in run.output.glob("data/*.parquet"):
        assert engine_of(pq.read_schema(part)) == engine


def test_rows_with_a_form_or_a_forced_call_have_what_they_ask_for_and_bad_ones_are_error_rows(tmp_path: Path) -> None:
    """Beside rows without any, in a run whose rows write numbers unless they say otherwise."""
    schema = {"type": "object", "properties": {"b": {"enum": ["yes", "no"]}}, "required": ["b"]}
    schema |= {"additionalProperties": False}
    tight = {"json_schema": schema, "disable_any_whitespace": True}
    tool = {"type": "function", "function": {"name": "pick", "parameters": schema}}
    deep: dict[str, Any] = {"type": "array"}
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    hello = [{"role": "user", "content": "hello"}]
    rows: dict[str, dict[str, Any]] = {
        "number": {"prompt": "7 x 8 ="},
        "schema": {"prompt": "JSON:", "sampling": {"structured": tight}},
        "none": {"prompt": "Once upon a time", "sampling": {"structured": False}},
        "call": {"messages": hello, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False},
        "deep": {"prompt": "x", "sampling": {"structured": {"json_schema": deep}}},
        "wrong": {"prompt": "x", "sampling": {"structured": {"regex": "(("}}},
    }
    run = VllmRun(tmp_path)
    run.read([{"id": name, "kind": "a", **row} for name, row in rows.items()])
    flags = ('--sampling.structured={"regex": "[0-9]{1,9}"}', "--output.parts", "--sampling.max_tokens=80")
    code, printed = run.generate(*flags, "--run.max_error_rate=0.7")
    assert code == 0, printed
    found = {row["id"]: row for row in generations(run.output)}
    assert found.keys() == {"number", "schema", "none", "call"}
    assert re.fullmatch("[0-9]{1,9}", found["number"]["text"])
    jsonschema.validate(json.loads(found["schema"]["text"]), schema)
    (call,) = found["call"]["tool_calls"]
    jsonschema.validate(json.loads(call["arguments"]), schema)
    said = {row["id"]: (row["stage"], row["message"]) for row in errors(run.output)}
    assert said["wrong"][0] == "params"
    assert said["deep"][0] == "generate"
    assert "vLLM does not take this sampling.structured.json_schema" in said["deep"][1]
    assert problems(run.output) == []


def test_the_same_command_does_nothing_and_another_engine_is_refused(run: VllmRun) -> None:
    before = commits(run.output)
    code, printed = run.generate()
    assert (code, "Nothing left to do" in printed) == (0, True)
    code, printed = replace(run, backend="dray").generate()
    assert code == 2
    assert "verification: was" in printed
    assert commits(run.output) == before


def test_the_commands_over_a_corpus_work(run: VllmRun, tmp_path: Path) -> None:
    assert run.tool("jobs.verify", str(run.output))[0] == 0
    assert run.tool("jobs.report", str(run.output), "--by", "kind")[0] == 0
    assert run.tool("jobs.export", str(run.output), str(tmp_path / "corpus.jsonl"))[0] == 0
    assert len((tmp_path / "corpus.jsonl").read_text().splitlines()) == 25  # error rows are lines, too
    assert run.tool("jobs.compact", str(run.output), str(tmp_path / "compacted"))[0] == 0
    assert ds.dataset(tmp_path / "compacted", format="parquet").count_rows() == 20


def test_failed_rows_are_tried_again(run: VllmRun) -> None:
    code, printed = run.generate("--stage=generate", command="retry")
    assert code == 0, printed
    assert {row["attempt"] for row in errors(run.output) if row["stage"] == "generate"} == {1}
    assert problems(run.output) == []
