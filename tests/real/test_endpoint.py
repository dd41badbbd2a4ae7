"""The endpoint over SmolLM2: whole, streamed and offline texts are the same, with forms, calls and more."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from endpoint.edge.install import EdgeSettings
from endpoint.service.service import ServiceSettings
from tests.endpoint.in_process import MODEL, Server, answered, running_server, streamed
from tests.real.conftest import chat, settings_for

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(600)]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "rank": {"type": "integer", "maximum": 99}},
    "required": ["city", "rank"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": chat("Tell me of a raven."),
    "letters that are several tokens": chat("Repeat: 日本 🙂 été"),
    "stop": {**chat("Count from 1 to 9."), "stop": ["5", "\n"], "temperature": 0.0},
    "penalties": {**chat("Name birds."), "presence_penalty": 0.6, "frequency_penalty": 0.4},
    "logprobs": {**chat("Say hello."), "logprobs": True, "top_logprobs": 2},
    "form": {**chat("A city as JSON."), "response_format": FORM},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    settings = settings_for("smollm2", drafter="suffix", num_slots=8)
    with running_server(settings, ServiceSettings(model=MODEL), EdgeSettings(keys=None)) as running:
        yield running


@pytest.mark.parametrize("name", REQUESTS)
def test_a_chat_is_the_same_whole_streamed_and_offline(server, name):
    request = {"temperature": 0.9, "seed": 5, "max_tokens": 40, **REQUESTS[name]}
    offline = {key: value for key, value in request.items() if "logprobs" not in key and key != "response_format"}
    (row,) = server.offline(**offline, **({"structured": {"json_schema": SCHEMA}} if name == "form" else {}))
    with server.client() as client:
        (choice,) = answered(client.chat.completions, **request).choices
        texts, chunks = streamed(client.chat.completions, **request)
    assert (choice.message.content, choice.finish_reason) == (row["text"], row["finish_reason"])
    assert texts == {0: row["text"]}
    assert len(chunks) > 3 or len(row["token_ids"]) < 6
    if name == "form" and choice.finish_reason == "stop":
        jsonschema.validate(json.loads(row["text"]), SCHEMA)
    if name == "stop":
        assert choice.finish_reason == "stop"
        assert not any(stop in row["text"] for stop in request["stop"])
    if name == "logprobs":
        assert len(choice.logprobs.content) == len(row["token_ids"])


def test_a_forced_call_fulfils_its_schema_and_is_the_same_whole_and_streamed(server):
    request: dict[str, Any] = {**chat("The weather in Rome?"), "tools": [TOOL], "max_tokens": 90, "temperature": 0.9}
    request |= {"tool_choice": "required", "parallel_tool_calls": False, "seed": 2}
    with server.client() as client:
        (choice,) = answered(client.chat.completions, **request).choices
        _, chunks = streamed(client.chat.completions, **request)
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "weather")
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    parts = [part for chunk in chunks for each in chunk.choices for part in each.delta.tool_calls or ()]
    assert "".join(part.function.arguments or "" for part in parts) == call.function.arguments
