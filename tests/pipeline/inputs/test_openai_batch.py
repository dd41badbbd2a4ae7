"""OpenAI batch lines are translated, or refused by the name of the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.errors import ErrorRow
from pipeline.inputs.files import list_files
from pipeline.inputs.options import InputOptions
from pipeline.inputs.rows import InputRow
from tests.pipeline.made_up import read_all

Line = dict[str, Any]
Read = Callable[[Line], InputRow | ErrorRow]
JSON: Line = {"type": "json_object"}
SCHEMA: Line = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "null"}}}
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def read(write: Callable[[str, bytes], str]) -> Read:
    def read_line(line: Line) -> InputRow | ErrorRow:
        path = write("batch.jsonl", json.dumps(line).encode())
        (row,) = read_all(list_files(path), InputOptions(format="openai_batch"), 1)
        return row

    return read_line


def chat(**body: Any) -> Line:
    body = {"model": "m", "messages": MESSAGES, **body}
    return {"custom_id": "c1", "method": "POST", "url": "/v1/chat/completions", "body": body}


def completion(**body: Any) -> Line:
    return {"custom_id": "c1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi", **body}}


@pytest.mark.parametrize(
    ("line", "overrides"),
    [
        (chat(temperature=0.5, top_p=0.9, seed=3, n=2, stop=["a"]), None),
        (chat(top_k=5, min_p=0.1, repetition_penalty=1.1, min_tokens=1, ignore_eos=True, stop_token_ids=[3]), None),
        (chat(max_completion_tokens=9), {"max_tokens": 9}),
        (chat(max_completion_tokens=9, max_tokens=9), {"max_tokens": 9}),
        (chat(logit_bias={"12": -100}), {"logit_bias": {12: -100}}),
        (chat(allowed_token_ids=[3, 4], bad_words=["no"]), None),
        (chat(logprobs=True), {"logprobs": 0}),
        (chat(response_format=JSON), {"structured": {"json_object": True}}),
        (chat(response_format=SCHEMA), {"structured": {"json_schema": {"type": "null"}}}),
        (chat(structured_outputs={"choice": ["a"], "regex": None}), {"structured": {"choice": ["a"]}}),
        (completion(guided_json={"type": "null"}), {"structured": {"json_schema": {"type": "null"}}}),
        (chat(logprobs=True, top_logprobs=3), {"logprobs": 3}),
        (chat(logprobs=False, top_logprobs=None), {}),
        (completion(logprobs=2, max_tokens=4), {"logprobs": 2, "max_tokens": 4}),
        (
            chat(user="u", metadata={"a": 1}, stream=False, tools=[], response_format={"type": "text"}),
            {"structured": False},
        ),
    ],
)
def test_fields_of_the_body_become_sampling_parameters(read: Read, line: Line, overrides: Line | None) -> None:
    row = read(line)
    assert isinstance(row, InputRow)
    body = line["body"]
    expected = {k: v for k, v in body.items() if k not in ("model", "messages")} if overrides is None else overrides
    assert (row.user_id, row.prompt, row.messages) == ("c1", body.get("prompt"), body.get("messages"))
    assert row.overrides == expected


@pytest.mark.parametrize(
    ("line", "stage", "message"),
    [
        (chat(functions=[{"name": "f"}]), "params", "body.functions is not supported"),
        (chat(tools=3), "template", "body.tools: expected a list, got int"),
        (chat(stream=True), "params", "body.stream is not supported"),
        (chat(response_format={"type": "xml"}), "params", "body.response_format.type: expected text, json_object or"),
        (
            chat(response_format={"type": "json_schema"}),
            "params",
            "body.response_format.json_schema: expected an",
        ),
        (chat(response_format="json"), "params", "body.response_format: expected an object, got a string"),
        (
            chat(response_format=JSON, guided_regex="a"),
            "params",
            "body.guided_regex: the body has response_format",
        ),
        (
            chat(structured_outputs={"structural_tag": "x"}),
            "params",
            "body.structured_outputs.structural_tag: it is",
        ),
        (completion(best_of=2), "params", "body.best_of is not supported"),
        (completion(echo=True), "params", "body.echo is not supported"),
        (chat(prompt="x"), "params", "body has prompt"),
        (chat(max_tokens=1, max_completion_tokens=2), "params", "differ"),
        (chat(logprobs=5), "params", "body.logprobs: expected true or false"),
        (chat(top_logprobs=5), "params", "needs body.logprobs"),
        (chat(logit_bias={"x": 1}), "params", "body.logit_bias"),
        (chat(messages=None), "read", "body.messages: expected a list, got NoneType"),
        (completion(prompt=["a", "b"]), "read", "body.prompt: expected one string, got list"),
        ({**chat(), "url": "/v1/embeddings"}, "read", "got '/v1/embeddings'"),
        ({**chat(), "method": "GET"}, "read", "method"),
        ({**chat(), "body": None}, "read", "body: expected an object"),
        ({**chat(), "custom_id": None}, "read", "custom_id: expected a string, got None"),
    ],
)
def test_an_unsupported_field_is_an_error_row_that_names_it(read: Read, line: Line, stage: str, message: str) -> None:
    row = read(line)
    assert isinstance(row, ErrorRow)
    assert row.stage == stage
    assert message in row.message
    assert row.id == line["custom_id"]
