"""OpenAI batch lines are translated, or refused by the name of the field."""

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
        (chat(max_completion_tokens=9, max_tokens=12), {"max_tokens": 9}),
        (chat(logit_bias={"12": -100}), {"logit_bias": {12: -100}}),
        (chat(allowed_token_ids=[3, 4], bad_words=["no"]), None),
        (chat(logprobs=True), {"logprobs": 0}),
        (chat(response_format=JSON), {"structured": {"json_object": True}}),
        (chat(response_format=SCHEMA), {"structured": {"json_schema": {"type": "null"}}}),
        (chat(structured_outputs={"choice": ["a"], "regex": None}), {"structured": {"choice": ["a"]}}),
        (completion(guided_json={"type": "null"}), {"structured": {"json_schema": {"type": "null"}}}),
        (chat(logprobs=True, top_logprobs=3), {"logprobs": 3}),
        (chat(logprobs=False, top_logprobs=None), {"logprobs": None}),
        (completion(logprobs=2, max_tokens=4), {"logprobs": 2, "max_tokens": 4}),
        (
            chat(user="u", metadata={"a": "b"}, stream=False, tools=[], response_format={"type": "text"}),
            {"structured": False},
        ),
    ],
)
def test_fields_of_the_body_become_sampling_parameters(read, line, overrides):
    row = read(line)
    assert isinstance(row, InputRow)
    body = line["body"]
    expected = {k: v for k, v in body.items() if k not in ("model", "messages")} if overrides is None else overrides
    assert (row.user_id, row.prompt, row.messages) == ("c1", body.get("prompt"), body.get("messages"))
    assert row.overrides == expected


@pytest.mark.parametrize(
    ("line", "stage", "message"),
    [
        (completion(prompt=[5, -1]), "params", "body.prompt[1]: a token id is an integer from 0 to 2147483647"),
        ({**chat(), "url": "/v1/embeddings"}, "read", "url: expected one of /v1/chat/completions, /v1/completions"),
        ({**chat(), "url": ["/v1/completions"]}, "read", "url: expected one of "),
        ({**chat(), "method": "GET"}, "read", "method: expected 'POST'"),
        ({**chat(), "body": None}, "read", "body: expected an object"),
        ({**chat(), "custom_id": ""}, "read", "custom_id: expected a string of 1 to 512 characters"),
    ],
)
def test_an_unsupported_field_is_an_error_row_that_names_it(read, line, stage, message):
    row = read(line)
    assert isinstance(row, ErrorRow)
    assert row.stage == stage
    assert row.message.startswith(message)
    assert row.id == (line["custom_id"] or None)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"prompt": "a", "temperature": NaN}', "NaN is not JSON; a number must be finite."),
        ('{"prompt": "a", "temperature": 1e400}', "the line has a number that is too large for a float."),
        ('{"prompt": "a", "logit_bias": {"1": 1, "1": 2}}', "the line has the same key twice in one object."),
        ('{"prompt": "\\ud800"}', "the line has half of a surrogate pair (\\ud800 to \\udfff)."),
    ],
)
def test_a_line_that_no_endpoint_would_parse_is_an_error_row(write, body, message):
    wrong = f'{{"custom_id": "a", "url": "/v1/completions", "body": {body}}}'
    path = write("batch.jsonl", f"{json.dumps(completion())}\n{wrong}".encode())
    _, row = read_all(list_files(path), InputOptions(format="openai_batch"), 2)
    assert isinstance(row, ErrorRow)
    assert row.message == f"not a request: {message}"
