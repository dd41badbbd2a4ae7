"""The endpoint over vLLM's engine, in this process: what a client of the OpenAI API sees."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from endpoint.edge.install import EdgeSettings
from endpoint.service.service import ServiceSettings
from tests.endpoint.in_process import MODEL, Server, running_server, streamed
from tests.jobs.runs import wait_until
from tests.vllm.conftest import vllm_settings


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The endpoint with the bundled pair."""
    with running_server(vllm_settings(has_draft=True), ServiceSettings(model=MODEL), EdgeSettings(keys=None)) as server:
        yield server


def test_a_stream_joins_to_the_whole_text_and_greedy_text_is_drays(server: Server) -> None:
    api = server.client().completions
    request: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0.0}
    whole = api.create(model=MODEL, **request)
    texts, chunks = streamed(api, stream_options={"include_usage": True}, **request)
    assert texts == {0: whole.choices[0].text}
    assert chunks[-1].usage == whole.usage
    assert [whole.choices[0].text] == server.texts_of([request])[0]


def test_chats_samples_stops_and_logprobs_are_answered(server: Server) -> None:
    messages = [{"role": "user", "content": "Write a shopping list."}]
    chat = server.client().chat.completions.create(  # type: ignore[call-overload]
        model=MODEL, messages=messages, n=2, max_tokens=20, logprobs=True, top_logprobs=2, seed=1
    )
    assert len(chat.choices) == 2
    for choice in chat.choices:
        assert choice.message.content == "".join(entry.token for entry in choice.logprobs.content)
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    stopped = server.client().completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=60, temperature=0.0, stop=["e"]
    )
    assert (stopped.choices[0].finish_reason, "e" in stopped.choices[0].text) == ("stop", False)


def test_a_prompt_is_scored(server: Server) -> None:
    echoed = server.client().completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=1, echo=True, logprobs=1, temperature=0.0
    )
    logprobs = echoed.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])


SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
HELLO: Any = [{"role": "user", "content": "hello"}]
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


def test_a_response_format_is_kept_to_and_a_bad_one_is_refused(server: Server) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    chats = server.client().chat.completions
    for seed in range(3):
        choice = chats.create(model=MODEL, messages=HELLO, response_format=form, seed=seed, max_tokens=100).choices[0]
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), SCHEMA)
    cut = chats.create(model=MODEL, messages=HELLO, response_format=form, max_tokens=4).choices[0]
    assert cut.finish_reason == "length"
    for extra in ({"regex": "(?s:a|b)"}, {"choice": ["yes", "no"]}, {"grammar": 'start: "x" /[0-9]{3}/'}):
        texts, _ = streamed(chats, messages=HELLO, max_tokens=20, extra_body={"structured_outputs": extra})
        assert re.fullmatch("a|b|yes|no|x[0-9]{3}", texts[0])
    for bad in ({"regex": "a\x00b"}, {"grammar": "start: missing"}):
        with pytest.raises(openai.BadRequestError, match=r"NUL character|missing"):
            chats.create(model=MODEL, messages=HELLO, max_tokens=4, extra_body={"structured_outputs": bad})


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_forced_calls_fulfil_their_schema_whole_and_streamed(server: Server, choice: Any) -> None:
    chats = server.client().chat.completions
    fields: Any = {"model": MODEL, "messages": HELLO, "tools": [WEATHER], "tool_choice": choice}
    fields |= {"temperature": 0.0, "max_tokens": 120, "parallel_tool_calls": False}
    whole = chats.create(**fields).choices[0]
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    arguments = ""
    for chunk in chats.create(**fields, stream=True):
        for part in chunk.choices:
            arguments += "".join(each.function.arguments for each in part.delta.tool_calls or [])
    assert arguments == call.function.arguments


def test_a_client_that_leaves_frees_its_slot(server: Server) -> None:
    stream = server.client().completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=150, stream=True, temperature=0.0
    )
    next(iter(stream))
    assert server.replica.stats().num_running == 1
    stream.close()
    wait_until(lambda: server.replica.stats().num_running == 0, 60)


def test_what_vllm_lacks_is_refused_by_name(server: Server) -> None:
    with pytest.raises(Exception, match="min_p: does not work in vLLM beside drafts"):
        server.client().completions.create(model=MODEL, prompt="x", max_tokens=4, extra_body={"min_p": 0.3})
