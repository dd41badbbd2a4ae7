"""Logs of the endpoint and its engines: no line holds a prompt, an output or an error's message."""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from ray.exceptions import RayActorError, RayTaskError

from actors.engine.deltas import Delta, Ending
from actors.engine.requests import EngineFacts, FailedError, Generation, Scoring
from actors.workers.replica import Replica
from decoding import Engine, SamplingParams
from decoding.sequence import TokenLogprobs
from tests.endpoint.in_process import Server, running_server, settings_of

MARKER = "marker-of-a-prompt"


class Failing:
    """A backend that fails over every request, and quotes it."""

    def __init__(self) -> None:
        self.error: Exception | str = ""

    async def facts(self) -> EngineFacts:
        return EngineFacts(96, 300, 3)

    async def check_health(self) -> None:
        raise RuntimeError(MARKER)

    async def score(self, scoring: Scoring) -> list[list[TokenLogprobs]]:
        assert isinstance(self.error, Exception)
        raise self.error

    async def generate(self, generation: Generation) -> AsyncIterator[list[Delta]]:
        yield [Delta(0, (70,))]
        if isinstance(self.error, Exception):
            raise self.error
        yield [Delta(0, (), ending=Ending("error", None, self.error, 0, 1, 0, 0, {}))]


@pytest.fixture(scope="module")
def failing(text_pair: tuple[str, str]) -> Iterator[tuple[Server, Failing]]:
    backend = Failing()
    with running_server(settings_of(text_pair), backend) as server:
        yield server, backend


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"cannot read {MARKER}"),
        KeyError(MARKER),
        FailedError(MARKER),
        f"a stage was lost: {MARKER}",
        f"the logits are not finite after {MARKER}",
    ],
    ids=str,
)
def test_a_backends_failure_is_logged_without_its_message(
    failing: tuple[Server, Failing], caplog: pytest.LogCaptureFixture, error: Exception | str, stream: bool
) -> None:
    server, backend = failing
    backend.error = error
    body: dict[str, Any] = {"prompt": MARKER, "stream": stream}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("v1/completions", body),
        ("v1/completions", {**body, "suffix": MARKER}),
        ("v1/chat/completions", {"messages": [{"role": MARKER, "content": MARKER}]}),
        ("v1/chat/completions", {"messages": [{"role": "user", "content": MARKER}], "stream": stream}),
    ]
    if isinstance(error, Exception):
        asked.append(("v1/completions", {**body, "echo": True, "logprobs": 1}))
    with caplog.at_level(logging.DEBUG):
        answers = [httpx2.post(f"{server.url}/{path}", json=body).text for path, body in asked]
        answers.append(httpx2.get(f"{server.url}/health/ready").text)
    assert not [text for text in (*answers, caplog.text) if MARKER in text]
    assert not [record for record in caplog.records if record.exc_info]
    if isinstance(error, str):
        assert 'cause="not finite"' in caplog.text or ("cause=other" in caplog.text and "not finite" not in error)
    elif not isinstance(error, FailedError):
        assert type(error).__name__ in caplog.text
        assert "test_logs.py" in caplog.text, "where it was raised"


def test_a_replica_hands_serve_no_exception_whose_message_serve_would_log(
    text_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError(f"cannot read {MARKER}")

    replica = Replica(settings_of(text_pair))
    monkeypatch.setattr(Engine, "step", broken)
    monkeypatch.setattr(Engine, "prompt_logprobs", broken)
    generation = Generation(request_id="r", prompts=((5, 6),), seeds=(1,), params=SamplingParams(max_tokens=3))

    async def scenario() -> list[Any]:
        said = [item async for item in replica.generate_or_refuse(generation)]
        return [*said, await replica.score_or_refuse(Scoring(request_id="s", prompts=((5, 6),), num_top=0))]

    failures = [item for item in asyncio.run(scenario()) if isinstance(item, Exception)]
    assert [type(failure) for failure in failures] == [FailedError, FailedError]
    assert [str(failure) for failure in failures] == ["the engine failed: ValueError"] * 2
    assert MARKER not in caplog.text
    assert caplog.text.count("engine failed") == 2


def test_a_failed_health_check_names_only_the_failures_type(
    text_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    may_fail, has_begun = threading.Event(), threading.Event()

    def broken(*_: Any) -> Any:
        has_begun.set()
        assert may_fail.wait(60)
        raise ValueError(f"cannot read {MARKER}")

    replica = Replica(settings_of(text_pair))
    monkeypatch.setattr(Engine, "step", broken)
    generation = Generation(request_id="r", prompts=((5, 6),), seeds=(1,), params=SamplingParams(max_tokens=3))

    async def scenario() -> BaseException:
        async def read() -> list[Any]:
            return [item async for item in replica.generate_or_refuse(generation)]

        reading = asyncio.ensure_future(read())
        await asyncio.to_thread(has_begun.wait, 60)
        probing = asyncio.ensure_future(replica.check_health())  # beside the step that is about to fail
        await asyncio.sleep(0)
        may_fail.set()
        await asyncio.wait([reading, probing])
        error = probing.exception()
        assert error is not None
        return error

    error = asyncio.run(scenario())
    assert (type(error), str(error)) == (RuntimeError, "the engine failed: ValueError")
    assert MARKER not in "".join(traceback.format_exception(error)) + caplog.text


def test_another_processs_exception_is_a_failure_and_its_loss_is_raised_unchanged(
    text_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replica = Replica(settings_of(text_pair))
    generation = Generation(request_id="r", prompts=((5, 6),), seeds=(1,), params=SamplingParams(max_tokens=3))

    async def last_item(error: Exception) -> Any:
        def broken(*_: Any) -> Any:
            raise error

        monkeypatch.setattr(Engine, "step", broken)
        return [item async for item in replica.generate_or_refuse(generation)][-1]

    failure = asyncio.run(last_item(RayTaskError("read", MARKER, ValueError(MARKER))))
    assert isinstance(failure, FailedError)
    assert MARKER not in str(failure) + caplog.text
    with pytest.raises(RayActorError):
        asyncio.run(last_item(RayActorError()))


def test_an_engine_that_cannot_be_resized_is_logged_without_the_errors_message(
    text_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise MemoryError(MARKER)

    replica = Replica(settings_of(text_pair))
    monkeypatch.setattr(Engine, "prompt_logprobs", broken)
    monkeypatch.setattr(Engine, "resize", broken)
    scored = asyncio.run(replica.score_or_refuse(Scoring(request_id="s", prompts=((5, 6),), num_top=0)))
    assert isinstance(scored, FailedError)
    assert "engine not resized" in caplog.text
    assert MARKER not in caplog.text + str(scored)
