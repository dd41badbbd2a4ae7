"""The endpoint over SmolLM2: whole, streamed and offline texts are the same, with forms, calls, thoughts and scores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from decoding.checkpoint.supported import model_folder
from endpoint.edge.install import EdgeSettings
from endpoint.service.service import ServiceSettings
from tests.endpoint.in_process import MODEL, Server, answered, running_server, settings_of, streamed
from tests.real.conftest import Reference

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "rank": {"type": "integer", "maximum": 99}},
    "required": ["city", "rank"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather of a city.", "parameters": SCHEMA, "strict": True},
}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}


def _messages(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {"messages": _messages("Tell me of a raven.")},
    "letters that are several tokens": {"messages": _messages("Repeat: 日本 🙂 été")},
    "stop": {"messages": _messages("Count from 1 to 9."), "stop": ["5", "\n"]},
    "penalties": {"messages": _messages("Name birds."), "presence_penalty": 0.6, "frequency_penalty": 0.4},
    "logprobs": {"messages": _messages("Say hello."), "logprobs": True, "top_logprobs": 2},
    "form": {"messages": _messages("A city as JSON."), "response_format": FORM},
}


@pytest.fixture(scope="module")
def server(smollm2: str) -> Iterator[Server]:
    folder = model_folder(smollm2)
    settings = settings_of((folder, None), drafter="suffix", max_model_len=1024, num_slots=8)  # type: ignore[arg-type]
    with running_server(settings, ServiceSettings(model=MODEL), EdgeSettings(keys=None)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_chat_is_the_same_whole_streamed_and_offline(
    server: Server, client: openai.OpenAI, name: str, temperature: float
) -> None:
    request = {"temperature": temperature, "seed": 5, "max_tokens": 40, **REQUESTS[name]}
    offline = {key: value for key, value in request.items() if "logprobs" not in key}
    if offline.pop("response_format", None) is not None:
        offline["structured"] = {"json_schema": SCHEMA}
    (row,) = server.offline(**offline)
    (choice,) = answered(client.chat.completions, **request).choices
    assert (choice.message.content, choice.finish_reason) == (row["text"], row["finish_reason"])
    texts, chunks = streamed(client.chat.completions, **request)
    assert texts == {0: row["text"]}
    assert len(chunks) > 3 or len(row["token_ids"]) < 6
    if name == "form" and choice.finish_reason == "stop":
        jsonschema.validate(json.loads(row["text"]), SCHEMA)
    if name == "stop":
        assert choice.finish_reason == "stop"
        assert not any(stop in row["text"] for stop in request["stop"])
    if name == "logprobs":
        assert len(choice.logprobs.content) == len(row["token_ids"])


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_forced_calls_fulfil_their_schema_and_are_the_same_whole_and_streamed(
    client: openai.OpenAI, temperature: float
) -> None:
    request: dict[str, Any] = {"messages": _messages("The weather in Rome?"), "tools": [TOOL], "max_tokens": 90}
    request |= {"tool_choice": "required", "parallel_tool_calls": False, "temperature": temperature, "seed": 2}
    (choice,) = answered(client.chat.completions, **request).choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert call.function.name == "weather"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    parts = [
        part.function.arguments or ""
        for chunk in client.chat.completions.create(model=MODEL, stream=True, **request)
        for delta in chunk.choices
        for part in delta.delta.tool_calls or ()
    ]
    assert "".join(parts) == call.function.arguments


def test_scores_of_a_text_are_those_of_transformers(client: openai.OpenAI, smollm2_reference: Reference) -> None:
    text = "The capital of France is Paris, and that of Italy is Rome."
    ids = smollm2_reference.tokenizer(text).input_ids
    (choice,) = answered(client.completions, prompt=text, max_tokens=1, echo=True, logprobs=1, temperature=0).choices
    assert choice.logprobs.token_logprobs[0] is None
    found = choice.logprobs.token_logprobs[1 : len(ids)]
    assert found == pytest.approx(smollm2_reference.logprobs(ids[:1], ids[1:]), abs=2e-4)
