"""What a client sees when something goes wrong behind the application."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import httpx2
import openai
import pytest

from actors.engine.deadline import DeadlineError
from actors.engine.deltas import Delta, Ending
from actors.engine.requests import BusyError, EngineFacts, FailedError, Generation, RefusedError, Scoring
from decoding.sequence import TokenLogprobs
from endpoint.service.meter import FinishReason, RequestMeter
from pipeline.counts import Counts
from tests.endpoint.in_process import MODEL, Server, running_server, settings_of
from tests.jobs.runs import wait_until


class Backend:
    """A backend that yields two tokens, and then does what `then` does."""

    def __init__(self) -> None:
        self.then: Callable[[], Any] = lambda: None
        self.score_fails_with: Exception = BusyError("x")
        self.num_closed = 0
        self.is_hurried, self.has_end, self.knows_facts = False, True, True

    async def facts(self) -> EngineFacts:
        if not self.knows_facts:
            await asyncio.Event().wait()
        return EngineFacts(96, 300, 3)

    async def check_health(self) -> None:
        return None

    async def score(self, scoring: Scoring) -> list[list[TokenLogprobs]]:
        raise self.score_fails_with

    async def generate(self, generation: Generation) -> AsyncIterator[list[Delta]]:
        try:
            first = [Delta(0, (70, 71), 1, 1)] if generation.params.max_tokens > 1 else []
            if first and not self.is_hurried:
                yield first
            if (wait := self.then()) is not None:
                await wait
            ending = Ending("length", None, None, 0, 2, 1, 1, {(1, 1): 1, (0, 0): 1})
            if self.has_end:
                yield [*(first if self.is_hurried else []), Delta(0, (72,), ending=ending)]
        finally:
            self.num_closed += 1


class Meter(RequestMeter):
    """A meter that remembers its calls; a test looks at the newest one."""

    made: ClassVar[list[Meter]] = []

    def __init__(self) -> None:
        super().__init__()
        self.num_tokens, self.reasons, self.counts, self.num_drafts = 0, list[str](), Counts(), 0
        Meter.made.append(self)

    def tokens(self, num_tokens: int, sample: int = 0) -> None:
        self.num_tokens += num_tokens

    def finished(self, reason: FinishReason, counts: Counts | None = None, num_drafts: int = 0) -> None:
        self.reasons.append(reason)
        self.counts, self.num_drafts = counts or Counts(), num_drafts


@pytest.fixture(scope="module")
def served(text_pair: tuple[str, str]) -> Iterator[tuple[Server, Backend]]:
    backend = Backend()
    with running_server(settings_of(text_pair), backend) as server:
        server.service.new_meter = Meter
        yield server, backend


def fail(error: Exception) -> Callable[[], Any]:
    def then() -> Any:
        raise error

    return then


ERRORS: list[tuple[Exception, int, str, str]] = [
    (BusyError("x"), 429, "server_busy", "rejected"),
    (DeadlineError(1.0), 504, "deadline_exceeded", "timeout"),
    (ZeroDivisionError("secret"), 500, "internal_error", "error"),
]


@pytest.mark.parametrize(("error", "status", "code", "reason"), ERRORS)
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_an_error_in_mid_stream_ends_the_stream_with_an_error_event(
    served: tuple[Server, Backend], path: str, error: Exception, status: int, code: str, reason: str
) -> None:
    server, backend = served
    backend.then = fail(error)
    own = {"prompt": "a"} if path == "completions" else {"messages": [{"role": "user", "content": "a"}]}
    answer = httpx2.post(f"{server.url}/v1/{path}", json={**own, "stream": True, "max_tokens": 9})
    assert answer.status_code == 200
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert json.loads(events[-1])["error"]["code"] == code
    assert "[DONE]" not in answer.text
    assert "secret" not in answer.text
    assert Meter.made[-1].reasons == [reason]
    with server.client() as client, pytest.raises(openai.APIError):
        for _ in client.completions.create(model=MODEL, prompt="a", stream=True, max_tokens=9):
            pass


@pytest.mark.parametrize(("error", "status", "code", "reason"), ERRORS[:2])
@pytest.mark.parametrize("stream", [True, False])
def test_an_error_before_the_first_token_has_a_status_of_its_own(
    served: tuple[Server, Backend], stream: bool, error: Exception, status: int, code: str, reason: str
) -> None:
    server, backend = served
    backend.then = fail(error)
    answer = httpx2.post(f"{server.url}/v1/completions", json={"prompt": "a", "stream": stream, "max_tokens": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert Meter.made[-1].reasons == [reason]
    assert Meter.made[-1].counts == Counts(), "nothing was written to its prompt"


def test_scoring_is_refused_as_generating_is(served: tuple[Server, Backend]) -> None:
    body = {"prompt": "a", "echo": True, "logprobs": 1}
    answer = httpx2.post(f"{served[0].url}/v1/completions", json=body)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ValueError("marker: shape '[5, 6]' is invalid"), 500, None),
        (RuntimeError("marker: CUDA error"), 500, None),
        (FailedError("marker: memory ran out"), 500, "generation_failed"),
        (RefusedError("the prompt has too many tokens"), 400, "invalid_value"),
    ],
)
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_failure_while_scoring_is_a_server_error_without_its_message(
    served: tuple[Server, Backend], error: Exception, status: int, code: str | None, max_tokens: int
) -> None:
    server, backend = served
    backend.score_fails_with = error
    body = {"prompt": "a", "echo": True, "logprobs": 1, "max_tokens": max_tokens}
    answer = httpx2.post(f"{server.url}/v1/completions", json=body)
    backend.score_fails_with = BusyError("x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert "marker" not in answer.text


def test_a_client_that_leaves_a_stream_ends_its_generation(served: tuple[Server, Backend]) -> None:
    server, backend = served
    is_waiting, num_closed = threading.Event(), backend.num_closed

    async def wait() -> None:
        is_waiting.set()
        await asyncio.Event().wait()

    backend.then = wait
    body = {"prompt": "a", "stream": True, "max_tokens": 9}
    with httpx2.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
        next(answer.iter_lines())
        assert is_waiting.wait(30)

    wait_until(lambda: backend.num_closed > num_closed, 30)
    meter = Meter.made[-1]
    assert meter.reasons == ["cancelled"]
    assert (meter.counts.num_prompt_tokens, meter.counts.num_output_tokens) == (1, 2), "what was written for it counts"
    assert (meter.counts.num_draft_tokens, meter.counts.num_accepted_tokens, meter.num_drafts) == (1, 1, 1)


def test_a_meter_gets_every_token_and_the_counts(served: tuple[Server, Backend]) -> None:
    server, backend = served
    backend.then = lambda: None
    with server.client() as client:
        client.completions.create(model=MODEL, prompt=[5, 6], max_tokens=9)
    meter = Meter.made[-1]
    assert (meter.num_tokens, meter.reasons) == (3, ["length"])
    counts = meter.counts
    assert (counts.num_prompt_tokens, counts.num_output_tokens, counts.num_rounds) == (2, 3, 2)
    assert (counts.num_draft_tokens, counts.num_accepted_tokens, counts.accepted_per_position) == (1, 1, (1,))


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_deltas_that_arrive_together_are_sent_once_and_in_order(served: tuple[Server, Backend], path: str) -> None:
    """A busy reader gets several deltas of a choice at once, the last of which ends it."""
    server, backend = served
    backend.then, backend.is_hurried = (lambda: None), True
    own = {"prompt": "a"} if path == "completions" else {"messages": [{"role": "user", "content": "a"}]}
    answer = httpx2.post(f"{server.url}/v1/{path}", json={**own, "stream": True, "max_tokens": 9})
    backend.is_hurried = False
    choices = [json.loads(line[6:])["choices"][0] for line in answer.text.split("\n\n")[:-2]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert choices[-1]["finish_reason"] == "length", "nothing comes behind the end"
    texts = [choice["text"] if path == "completions" else choice["delta"].get("content") or "" for choice in choices]
    assert "".join(texts) == server.service.codec.decode([70, 71, 72])


@pytest.mark.parametrize("stream", [True, False])
def test_a_generation_without_an_ending_is_an_error(served: tuple[Server, Backend], stream: bool) -> None:
    server, backend = served
    backend.then, backend.has_end = (lambda: None), False
    answer = httpx2.post(f"{server.url}/v1/completions", json={"prompt": "a", "stream": stream, "max_tokens": 9})
    backend.has_end = True
    assert "generation_failed" in answer.text
    assert "[DONE]" not in answer.text
    assert answer.status_code == (200 if stream else 500)


@pytest.fixture
def hurried(served: tuple[Server, Backend]) -> Iterator[tuple[Server, Backend]]:
    """The same, where a request has 0.3 seconds in all."""
    server, backend = served
    settings = server.service.settings
    server.service.settings = replace(settings, request_timeout_s=0.3)
    backend.then = asyncio.Event().wait  # for ever
    yield server, backend
    server.service.settings, backend.knows_facts = settings, True


def asked(server: Server, *, stream: bool, max_tokens: int = 9) -> httpx2.Response:
    body = {"prompt": "a", "stream": stream, "max_tokens": max_tokens}
    return httpx2.post(f"{server.url}/v1/completions", json=body, timeout=30)


@pytest.mark.parametrize("stream", [True, False])
def test_waiting_for_an_engine_ends_at_the_deadline(hurried: tuple[Server, Backend], stream: bool) -> None:
    server, backend = hurried
    backend.knows_facts = False
    answer = asked(server, stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert httpx2.get(f"{server.url}/v1/models", timeout=30).status_code == 504


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_waiting_for_the_encoder_ends_at_the_deadline(hurried: tuple[Server, Backend], path: str) -> None:
    server, _ = hurried
    is_free = threading.Event()
    encoding = server.service._encoder._thread.submit(is_free.wait)
    try:
        answer = httpx2.post(f"{server.url}{path}", json={"prompt": "a"}, timeout=30)
    finally:
        is_free.set()
        encoding.result(30)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")


def test_waiting_for_a_token_ends_at_the_deadline_and_so_does_its_generation(
    hurried: tuple[Server, Backend],
) -> None:
    server, backend = hurried
    for stream, max_tokens, status in ((True, 9, 200), (True, 1, 504), (False, 9, 504)):
        num_closed = backend.num_closed
        answer = asked(server, stream=stream, max_tokens=max_tokens)
        assert (answer.status_code, backend.num_closed - num_closed) == (status, 1)
        last = answer.text.strip().split("\n\n")[-1].removeprefix("data: ")
        assert json.loads(last)["error"]["code"] == "deadline_exceeded"
        assert Meter.made[-1].reasons == ["timeout"]
