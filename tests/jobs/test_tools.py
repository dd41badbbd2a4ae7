"""A corpus whose answers call tools: rows of a JSONL file, and requests of a batch file, which are exported again."""

import json
from typing import Any

import jsonschema
import pyarrow as pa
import pytest

from jobs import export, generate
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.plan import create_run, make_plan
from pipeline.errors import RowError
from pipeline.inputs.records import to_rows
from pipeline.inputs.rows import chat_fields
from pipeline.text.codec import TextCodec
from pipeline.text.tools.asked import read_tools
from tests.endpoint.in_process import BUNDLED
from tests.jobs.runs import errors, generations
from tests.pipeline.made_up import input_row

SCHEMA = {
    "type": "object",
    "properties": {"b": {"enum": ["yes", "no"]}},
    "required": ["b"],
    "additionalProperties": False,
}
PICK: dict[str, Any] = {"type": "function", "function": {"name": "pick", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "pick"}}
HELLO = [{"role": "user", "content": "hello"}]


def test_columns_for_the_parts_are_those_of_a_run_that_asks_for_them(job):
    job.read(3)
    plan = make_plan(load(RunConfig, job.command(), prog="test"))
    assert "tool_calls" not in plan.identity["chat"]
    assert "has_parts" not in create_run(plan).run
    with pytest.raises(ValueError, match=r"output\.parts is True, but the run in .* does not have these columns"):
        make_plan(load(RunConfig, job.command("--output.parts"), prog="test"))


def test_a_run_with_the_parts_has_their_columns(job):
    job.read(3)
    run = create_run(make_plan(load(RunConfig, job.command("--output.parts"), prog="test")))
    assert run.generations_schema.names[-4:] == ["content", "reasoning", "tool_calls", "kind"]


def test_tools_of_a_parquet_struct_are_those_that_were_written():
    other = {"type": "function", "function": {"name": "go", "parameters": {"properties": {"x": {"type": "string"}}}}}
    table = pa.Table.from_pylist([{"tools": [PICK, other], "tool_choice": json.dumps(NAMED)}])
    (row,) = to_rows(table)
    assert not isinstance(row, RowError)
    found = chat_fields(row)
    asked = read_tools(found["tools"], found["tool_choice"])
    assert asked is not None
    assert asked.tools[0].parameters == SCHEMA
    assert asked.tools[1].parameters == {"properties": {"x": {"type": "string"}}}
    assert asked.named == "pick"
    with pytest.raises(RowError, match="column tools: expected a list, got int"):
        chat_fields({"tools": 3})
    with pytest.raises(RowError, match="column tools: not JSON"):
        chat_fields({"tools": "[1"})


def test_fields_of_a_row_say_how_its_chat_ends():
    codec = TextCodec.load(str(BUNDLED / "target"))
    begun = [*HELLO, {"role": "assistant", "content": "wor"}]
    ends = {None: "<|assistant|>wor", True: "<|assistant|>wor", False: "wor<|end|><|assistant|>"}
    for continues, end in ends.items():
        row = input_row(prompt=None, messages=begun, asked={"continue_final_message": continues})
        assert codec.prompt(row)[0].endswith(end)
    with pytest.raises(RowError, match="reasoning_effort: the chat template of this model has no such variable"):
        codec.prompt(input_row(prompt=None, messages=HELLO, asked={"reasoning_effort": "low"}))


@pytest.mark.usefixtures("local")
def test_rows_and_requests_call_tools(job, tmp_path):
    row = {"kind": "a", "messages": HELLO, "tools": [PICK], "tool_choice": "required", "parallel_tool_calls": False}
    rows: dict[str, dict[str, Any]] = {
        "forced": row,
        "as text": {**row, "tools": json.dumps([PICK]), "tool_choice": json.dumps(NAMED)},
        "plain": {"kind": "a", "messages": HELLO},
        "bad kwargs": {"kind": "a", "messages": HELLO, "chat_template_kwargs": {"x": 1}},
    }
    job.read([{"id": name, **each} for name, each in rows.items()])
    assert job.generate("--output.parts", "--sampling.max_tokens=150") == 0
    found = {each["id"]: each for each in generations(job.output)}
    assert found.keys() == {"forced", "as text", "plain"}
    for name in ("forced", "as text"):
        (call,) = found[name]["tool_calls"]
        assert call["name"] == "pick"
        jsonschema.validate(json.loads(call["arguments"]), SCHEMA)
        assert found[name]["content"] is None
        assert found[name]["text"].startswith('<tool_call>\n{"name": "pick"')
    assert found["plain"]["content"] == found["plain"]["text"]
    assert found["plain"]["tool_calls"] is None
    (said,) = errors(job.output)
    assert said["message"] == "chat_template_kwargs.x: the chat template of this model has no such variable"

    body = {"model": "m", "messages": HELLO, "tools": [PICK], "tool_choice": "required", "max_tokens": 150}
    line = {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    job.source, job.output = tmp_path / "batch.jsonl", tmp_path / "batch-out"
    job.read([line])
    command = [flag for flag in job.command() if "id_column" not in flag and "carry_columns" not in flag]
    assert generate.main(command) == 0
    assert export.main([str(job.output), str(tmp_path / "answers.jsonl")]) == 0
    (choice,) = json.loads((tmp_path / "answers.jsonl").read_text())["response"]["body"]["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "pick"
    assert choice["finish_reason"] in ("tool_calls", "length")
