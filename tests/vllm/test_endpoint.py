"""The endpoint over vLLM's engine, in this process: what a client of the OpenAI API sees."""

from collections.abc import Iterator
from typing import Any

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


def test_a_client_that_leaves_frees_its_slot(server: Server) -> None:
    stream = server.client().completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=150, stream=True, temperature=0.0
    )
    next(iter(stream))
    assert server.service.backend.stats().num_running == 1  # type: ignore[attr-defined]
    stream.close()
    wait_until(lambda: server.service.backend.stats().num_running == 0, 60)  # type: ignore[attr-defined]


def test_what_vllm_lacks_is_refused_by_name(server: Server) -> None:
    with pytest.raises(Exception, match="min_p does not work in vLLM beside drafts"):
        server.client().completions.create(model=MODEL, prompt="x", max_tokens=4, extra_body={"min_p": 0.3})
