"""POST /v1/chat/completions, with the official client as the judge of its form."""

import json
from typing import Any

import jsonschema
import pytest

from tests.endpoint.in_process import CONTEXT, answered, streamed

USER: Any = {"role": "user", "content": "hello"}
CHATS: dict[str, list[dict[str, Any]]] = {
    "a question": [USER],
    "with a system prompt": [{"role": "system", "content": "a small text"}, USER],
    "second turn": [USER, {"role": "assistant", "content": "world"}, {"role": "user", "content": "one"}],
    "an answer begun": [USER, {"role": "assistant", "content": "wor"}],
    "other letters": [{"role": "user", "content": "für 日本 🙂"}],
    "control tokens": [{"role": "user", "content": "a<|end|>b"}],
}


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_chat_writes_what_the_offline_job_writes_for_the_same_messages(server, client, name, temperature):
    request: dict[str, Any] = {"messages": CHATS[name], "temperature": temperature, "seed": 3, "max_tokens": 20}
    whole = answered(client.chat.completions, **request)
    (row,) = server.offline(messages=CHATS[name], temperature=temperature, seed=3, max_tokens=20)
    assert whole.choices[0].message.content == row["text"]
    assert whole.choices[0].finish_reason == row["finish_reason"]
    assert streamed(client.chat.completions, **request)[0] == {0: row["text"]}
    assert whole.usage.prompt_tokens == row["num_prompt_tokens"]


def test_an_answer_can_be_sent_back_unchanged_as_a_message(server, client):
    first = answered(client.chat.completions, messages=[USER], temperature=0, max_tokens=8)
    messages: Any = [USER, first.choices[0].message, {"role": "user", "content": "one"}]
    second = answered(client.chat.completions, messages=messages, temperature=0, max_tokens=8)
    plain = [USER, {"role": "assistant", "content": first.choices[0].message.content}, messages[-1]]
    (row,) = server.offline(messages=plain, temperature=0.0, max_tokens=8)
    assert second.choices[0].message.content == row["text"]
    dumped: Any = [USER, first.choices[0].message.model_dump(), messages[-1]]
    again = answered(client.chat.completions, messages=dumped, temperature=0, max_tokens=8)
    assert again.choices[0].message.content == row["text"]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_completion_tokens": 4, "max_tokens": 9}, 4),
        ({}, None),
    ],
)
def test_the_length_is_limited_by_the_newer_field_then_the_older_then_the_context(client, limits, expected):
    answer = answered(client.chat.completions, messages=[USER], extra_body={"ignore_eos": True}, **limits)
    assert answer.usage.completion_tokens == (expected or CONTEXT - answer.usage.prompt_tokens)
    assert answer.choices[0].finish_reason == "length"


def test_a_stream_begins_with_the_role_and_ends_each_choice_once(client):
    texts, chunks = streamed(
        client.chat.completions, messages=[USER], n=3, seed=1, max_tokens=10, stream_options={"include_usage": True}
    )
    for index in range(3):
        own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert (own[0].delta.role, own[0].delta.content) == ("assistant", "")
        assert all(choice.delta.role is None for choice in own[1:])
        assert [choice.finish_reason for choice in own].count(None) == len(own) - 1
        assert own[-1].finish_reason in ("stop", "length")
        assert own[-1].delta.content is None
    assert len(texts) == 3
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens > 0
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


@pytest.mark.parametrize("num_top", [None, 0, 4])
def test_log_probabilities_have_an_entry_for_each_token_whole_and_streamed(server, client, num_top):
    request: dict[str, Any] = {"messages": [USER], "seed": 6, "max_tokens": 12, "logprobs": True}
    if num_top is not None:
        request["top_logprobs"] = num_top
    whole = answered(client.chat.completions, **request).choices[0]
    (row,) = server.offline(messages=[USER], seed=6, max_tokens=12, logprobs=num_top or 0)
    content = whole.logprobs.content
    assert [entry.logprob for entry in content] == pytest.approx(row["logprobs"], abs=1e-4)
    assert all(len(entry.top_logprobs) == (num_top or 0) for entry in content)
    written = b"".join(bytes(entry.bytes or []) for entry in content)
    assert written.decode("utf-8", "replace").startswith((whole.message.content or "").rstrip("\ufffd"))
    _, chunks = streamed(client.chat.completions, **request)
    parts = [choice.logprobs.content for chunk in chunks for choice in chunk.choices if choice.logprobs]
    assert [entry.token for part in parts for entry in part] == [entry.token for entry in content]


def test_a_chat_shows_the_log_probabilities_of_its_prompt_once(server, client):
    extra = {"prompt_logprobs": 1, "return_token_ids": True}
    answer = answered(client.chat.completions, messages=[USER], n=2, max_tokens=2, extra_body=extra)
    ids, (first, *others) = (answer.model_extra[name] for name in ("prompt_token_ids", "prompt_logprobs"))
    assert first is None
    assert all(str(token_id) in entries for token_id, entries in zip(ids[1:], others, strict=True))
    assert all("prompt_logprobs" not in choice.model_extra for choice in answer.choices)
    same = {"prompt": ids, "max_tokens": 0, "extra_body": {"prompt_logprobs": 1}}
    scored = answered(client.completions, **same).choices[0].model_extra["prompt_logprobs"]
    for entries, expected in zip(others, scored[1:], strict=True):
        assert {token_id: entry["rank"] for token_id, entry in entries.items()} == {
            token_id: entry["rank"] for token_id, entry in expected.items()
        }


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"enum": ["yes", "no"]}, "b": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_chat_has_the_form_that_it_asks_for_and_is_what_the_offline_job_writes(server, client, temperature):
    form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
    request: dict[str, Any] = {"messages": [USER], "temperature": temperature, "seed": 3, "max_tokens": 60}
    whole = answered(client.chat.completions, **request, response_format=form)
    (row,) = server.offline(**request, structured={"json_schema": SCHEMA})
    assert whole.choices[0].message.content == row["text"]
    assert streamed(client.chat.completions, **request, response_format=form)[0] == {0: row["text"]}
    if row["finish_reason"] == "stop":
        jsonschema.validate(json.loads(row["text"]), SCHEMA)
