"""Logs of the endpoint and its engines: no line holds a prompt, an output or an error's message."""

import asyncio
import logging
import threading
import traceback
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from ray.exceptions import RayActorError, RayTaskError

from actors.engine.deltas import Delta, Ending
from actors.engine.requests import EngineFacts, FailedError, Generation, Scoring
from actors.workers.replica import Replica
from decoding import Engine, SamplingParams
from decoding.sequence import TokenLogprobs
from tests.endpoint.in_process import settings_of

pytestmark = pytest.mark.anyio
MARKER = "marker-of-a-prompt"
GENERATION = Generation(request_id="r", prompts=((5, 6),), seeds=(1,), params=SamplingParams(max_tokens=3))
SCORING = Scoring(request_id="s", prompts=((5, 6),), num_top=0)


class Failing:
    """A backend that fails over every request, and quotes it."""

    is_repeatable = True

    def __init__(self, error: Exception | str) -> None:
        self.error = error

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
        yield [Delta(0, (), ending=Ending("error", None, self.error, 0))]


@pytest.fixture
def replica(text_pair: tuple[str, str]) -> Replica:
    return Replica(settings_of(text_pair))


def fail(*_: Any) -> Any:
    raise ValueError(f"cannot read {MARKER}")


async def items_of(replica: Replica) -> list[Any]:
    return [item async for item in replica.generate(GENERATION)]


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
def test_a_backends_failure_is_logged_without_its_message(server, monkeypatch, caplog, error, stream):
    monkeypatch.setattr(server.service, "backend", Failing(error))
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


async def test_a_replica_hands_serve_no_exception_whose_message_serve_would_log(replica, monkeypatch, caplog):
    monkeypatch.setattr(Engine, "step", fail)
    for failure in ((await items_of(replica))[-1], await replica.score(SCORING)):
        assert (type(failure), str(failure)) == (FailedError, "the engine failed: ValueError")
    assert MARKER not in caplog.text
    assert caplog.text.count("engine failed") == 2


async def test_a_failed_health_check_names_only_the_failures_type(replica, monkeypatch, caplog):
    may_fail, has_begun = threading.Event(), threading.Event()

    def fail_later(*_: Any) -> Any:
        has_begun.set()
        assert may_fail.wait(60)
        fail()

    monkeypatch.setattr(Engine, "step", fail_later)
    reading = asyncio.ensure_future(items_of(replica))
    await asyncio.to_thread(has_begun.wait, 60)
    probing = asyncio.ensure_future(replica.check_health())  # beside the step that is about to fail
    await asyncio.sleep(0)
    may_fail.set()
    await asyncio.wait([reading, probing])
    error = probing.exception()
    assert (type(error), str(error)) == (RuntimeError, "the engine failed: ValueError")
    assert MARKER not in "".join(traceback.format_exception(error)) + caplog.text


async def test_another_processs_exception_is_a_failure_and_its_loss_is_raised_unchanged(replica, monkeypatch, caplog):
    async def last_item(error: Exception) -> Any:
        def broken(*_: Any) -> Any:
            raise error

        monkeypatch.setattr(Engine, "step", broken)
        return (await items_of(replica))[-1]

    failure = await last_item(RayTaskError("read", MARKER, ValueError(MARKER)))
    assert isinstance(failure, FailedError)
    assert MARKER not in str(failure) + caplog.text
    with pytest.raises(RayActorError):
        await last_item(RayActorError())


async def test_an_engine_that_cannot_be_resized_is_logged_without_the_errors_message(replica, monkeypatch, caplog):
    def broken(*_: Any) -> Any:
        raise MemoryError(MARKER)

    monkeypatch.setattr(Engine, "step", broken)
    monkeypatch.setattr(Engine, "resize", broken)
    scored = await replica.score(SCORING)
    assert isinstance(scored, FailedError)
    assert "engine not resized" in caplog.text
    assert MARKER not in caplog.text + str(scored)
