"""What a request must not ask, and what it is told: status, param and code."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest

from tests.endpoint.server import CONTEXT, MODEL, Server

Expected = tuple[int, str | None, str | None]
INVALID, UNSUPPORTED, UNKNOWN = "invalid_value", "unsupported_parameter", "unknown_parameter"

COMPLETIONS: list[tuple[dict[str, Any], Expected]] = [
    ({"prompt": None}, (400, "prompt", INVALID)),
    ({"prompt": 5}, (400, "prompt", INVALID)),
    ({"prompt": []}, (400, "prompt", INVALID)),
    ({"prompt": ""}, (400, "prompt", INVALID)),
    ({"prompt": ["a", 5]}, (400, "prompt[1]", INVALID)),
    ({"prompt": ["a", ""]}, (400, "prompt[1]", INVALID)),
    ({"prompt": [1, "a"]}, (400, "prompt[1]", INVALID)),
    ({"prompt": [1, -1]}, (400, "prompt[1]", INVALID)),
    ({"prompt": [[1], []]}, (400, "prompt[1]", INVALID)),
    ({"prompt": [[1], [True]]}, (400, "prompt[1][0]", INVALID)),
    ({"prompt": [[1], [-1]]}, (400, "prompt[1][0]", INVALID)),
    ({"prompt": {"text": "a"}}, (400, "prompt", INVALID)),
    ({"prompt": [2**40]}, (400, "prompt[0]", INVALID)),
    ({"prompt": [5000]}, (400, "prompt", INVALID)),
    ({"prompt": [[1], [5000]]}, (400, "prompt[1]", INVALID)),
    ({"prompt": "\ud800"}, (400, None, "invalid_json")),
    ({"prompt": "x " * 500}, (400, "prompt", "context_length_exceeded")),
    ({"prompt": ["a", "x " * 500]}, (400, "prompt[1]", "context_length_exceeded")),
    ({"prompt": [[5] * CONTEXT]}, (400, "prompt[0]", "context_length_exceeded")),
    ({"max_tokens": 0}, (400, "max_tokens", INVALID)),
    ({"n": 17}, (400, "n", INVALID)),
    ({"prompt": ["a"] * 17}, (400, "n", INVALID)),
    ({"best_of": 1, "n": 2}, (400, "best_of", INVALID)),
    ({"best_of": 2, "stream": True}, (400, "best_of", INVALID)),
    ({"stop": ["a", "b", "c", "d", "e"]}, (400, "stop", INVALID)),
    ({"stop": [""]}, (400, "stop", INVALID)),
    ({"stop": 5}, (400, "stop", INVALID)),
    ({"stop": ["a", 5]}, (400, "stop", INVALID)),
    ({"stop": "x" * 1001}, (400, "stop", INVALID)),
    ({"logit_bias": {"a": 1}}, (400, "logit_bias", INVALID)),
    ({"logit_bias": {"1": 101}}, (400, "logit_bias", INVALID)),
    ({"logit_bias": {"1": "1"}}, (400, "logit_bias", INVALID)),
    ({"logit_bias": {"-1": 1}}, (400, "logit_bias", INVALID)),
    ({"logit_bias": [1]}, (400, "logit_bias", INVALID)),
    ({"logit_bias": {"5000": 1}}, (400, "logit_bias", INVALID)),
    ({"stop_token_ids": [5000]}, (400, "stop_token_ids", INVALID)),
    ({"temperature": 0.001}, (400, "temperature", INVALID)),
    ({"min_tokens": 20, "max_tokens": 10}, (400, "min_tokens", INVALID)),
    ({"stream_options": {"include_usage": True}}, (400, "stream_options", INVALID)),
    ({"include_draft_spans": True}, (400, "include_draft_spans", INVALID)),
    ({"suffix": "x"}, (400, "suffix", UNSUPPORTED)),
    ({"response_format": {"type": "json_object"}}, (400, "response_format", UNSUPPORTED)),
    ({"bogus": 1}, (400, "bogus", UNKNOWN)),
    ({"messages": []}, (400, "messages", UNKNOWN)),
    ({"model": "other"}, (404, "model", "model_not_found")),
]
# What pydantic says; the edge adds codes.
LIMITS: list[tuple[str, Any]] = [
    ("temperature", 2.1),
    ("temperature", -1),
    ("temperature", "hot"),
    ("temperature", True),
    ("top_p", 0),
    ("top_p", 1.1),
    ("n", 0),
    ("n", 1.5),
    ("n", 10**9),
    ("n", True),
    ("max_tokens", -1),
    ("max_tokens", 2**63),
    ("max_tokens", "5"),
    ("best_of", 0),
    ("logprobs", 21),
    ("logprobs", True),
    ("echo", "yes"),
    ("stream", 1),
    ("seed", 2**64),
    ("seed", 1.5),
    ("frequency_penalty", 3),
    ("presence_penalty", -3),
    ("top_k", -2),
    ("min_p", 2),
    ("repetition_penalty", 0),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", 5),
    ("ignore_eos", 1),
    ("min_tokens", -1),
    ("model", 5),
    ("model", "x" * 1000),
]
USER = {"role": "user", "content": "a"}
CHATS: list[tuple[dict[str, Any], Expected]] = [
    ({"messages": None}, (400, "messages", INVALID)),
    ({"messages": []}, (400, "messages", INVALID)),
    ({"messages": "hello"}, (400, "messages", INVALID)),
    ({"messages": ["hello"]}, (400, "messages[0]", INVALID)),
    ({"messages": [{"content": "a"}]}, (400, "messages[0].role", INVALID)),
    ({"messages": [USER, {"role": "robot", "content": "a"}]}, (400, "messages[1].role", INVALID)),
    ({"messages": [{"role": "tool", "content": "a"}]}, (400, "messages[0].role", UNSUPPORTED)),
    ({"messages": [{"role": "user"}]}, (400, "messages[0].content", INVALID)),
    ({"messages": [{"role": "user", "content": 5}]}, (400, "messages[0].content", INVALID)),
    ({"messages": [{"role": "user", "content": []}]}, (400, "messages[0].content", INVALID)),
    ({"messages": [{"role": "user", "content": ["a"]}]}, (400, "messages[0].content[0]", INVALID)),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
        (400, "messages[0].content[0].type", UNSUPPORTED),
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, (400, "messages[0].content[0].text", INVALID)),
    ({"messages": [{**USER, "content": "\ud800"}]}, (400, None, "invalid_json")),
    ({"messages": [{**USER, "name": ""}]}, (400, "messages[0].name", INVALID)),
    ({"messages": [{**USER, "mood": "glad"}]}, (400, "messages[0].mood", UNSUPPORTED)),
    ({"messages": [USER, {"role": "assistant", "tool_calls": [{}]}]}, (400, "messages[1].tool_calls", UNSUPPORTED)),
    ({"messages": [{**USER, "content": "x " * 500}]}, (400, "messages", "context_length_exceeded")),
    ({"tools": [{"type": "function"}]}, (400, "tools", UNSUPPORTED)),
    ({"tool_choice": "required"}, (400, "tool_choice", UNSUPPORTED)),
    ({"functions": [{}]}, (400, "functions", UNSUPPORTED)),
    ({"response_format": {"type": "json_schema"}}, (400, "response_format", UNSUPPORTED)),
    ({"modalities": ["text", "audio"]}, (400, "modalities", UNSUPPORTED)),
    ({"audio": {"voice": "x"}}, (400, "audio", UNSUPPORTED)),
    ({"prediction": {"type": "content"}}, (400, "prediction", UNSUPPORTED)),
    ({"reasoning_effort": "low"}, (400, "reasoning_effort", UNSUPPORTED)),
    ({"top_logprobs": 2}, (400, "top_logprobs", INVALID)),
    ({"prompt": "a"}, (400, "prompt", UNKNOWN)),
    ({"echo": True}, (400, "echo", UNKNOWN)),
]


def _id(case: Any) -> str:
    return json.dumps(case)[:60] if isinstance(case, dict) else ""


def asked(server: Server, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    # As JSON in ASCII: half a surrogate pair can be written only so.
    answer = httpx2.post(f"{server.url}{path}", content=json.dumps(body), headers={"Content-Type": "application/json"})
    return answer.status_code, answer.json()["error"]


def check(status: int, error: dict[str, Any], expected: Expected) -> None:
    assert (status, error["param"], error["code"]) == expected, error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert "\ud800" not in error["message"]


@pytest.mark.parametrize(("change", "expected"), COMPLETIONS, ids=_id)
def test_a_completion_is_refused_by_name(server: Server, change: dict[str, Any], expected: Expected) -> None:
    check(*asked(server, "/v1/completions", {"model": MODEL, "prompt": "a", **change}), expected)


@pytest.mark.parametrize(("param", "value"), LIMITS)
def test_a_value_beyond_its_limits_is_refused_by_name(server: Server, param: str, value: Any) -> None:
    for path, own in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [USER]})):
        if path.endswith("chat/completions") and param in ("best_of", "logprobs", "echo"):
            continue
        status, error = asked(server, path, {"model": MODEL, **own, param: value})
        assert status == 400
        assert (error["param"] or "").startswith(param)


@pytest.mark.parametrize(("change", "expected"), CHATS, ids=_id)
def test_a_chat_is_refused_by_name(server: Server, change: dict[str, Any], expected: Expected) -> None:
    check(*asked(server, "/v1/chat/completions", {"model": MODEL, "messages": [USER], **change}), expected)


def test_a_request_that_is_refused_is_refused_when_it_wants_a_stream_too(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="x " * 500, stream=True)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "a"}], stream=True)


def test_the_prompt_may_fill_the_context_but_for_one_token_and_all_of_it_where_it_is_only_scored(
    client: openai.OpenAI,
) -> None:
    answer = client.completions.create(model=MODEL, prompt=[5] * (CONTEXT - 1), temperature=0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 1
    scored = client.completions.create(model=MODEL, prompt=[5] * CONTEXT, max_tokens=0, echo=True, logprobs=0)
    assert scored.choices[0].logprobs is not None
    assert len(scored.choices[0].logprobs.token_logprobs or []) == CONTEXT
