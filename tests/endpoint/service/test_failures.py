"""What a client sees when something goes wrong behind the application."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest

from actors.engine.deltas import Delta, Ending
from actors.engine.requests import BusyError, EngineFacts, FailedError, Generation, RefusedError, Scoring
from decoding.sequence import TokenLogprobs
from endpoint.http.origin import DeadlineError
from endpoint.service.metrics import ServingMetrics, page
from tests.endpoint.in_process import MODEL, Server
from tests.endpoint.web import samples_of
from tests.jobs.runs import wait_until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}


class Backend:
    """A backend that yields two tokens, and then does what `then` does."""

    is_repeatable = True

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
            if self.has_end:
                ending = Ending("length", None, None, 0)
                yield [*(first if self.is_hurried else []), Delta(0, (72,), ending=ending)]
        finally:
            self.num_closed += 1


@pytest.fixture
def backend(server: Server, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Such a backend of the server, whose metrics have counted nothing yet."""
    backend = Backend()
    monkeypatch.setattr(server.service, "backend", backend)
    monkeypatch.setattr(server.service, "metrics", ServingMetrics(MODEL))
    return backend


@pytest.fixture
def hurried(server: Server, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """The same, where a request has 0.3 seconds in all."""
    monkeypatch.setattr(server.service, "settings", replace(server.service.settings, request_timeout_s=0.3))
    backend.then = asyncio.Event().wait  # for ever
    return backend


def asked(server: Server, path: str = "v1/completions", **body: Any) -> httpx2.Response:
    """Ask for nine tokens, unless the body says otherwise."""
    prompt = CHAT if "chat" in path else {"prompt": "a"}
    limit = {} if path == "tokenize" else {"max_tokens": 9}
    return httpx2.post(f"{server.url}/{path}", json={**prompt, **limit, **body}, timeout=30)


def code_of(answer: httpx2.Response) -> str | None:
    """Return the code of the error that an answer is, or of the event that ends a stream."""
    last = answer.text.strip().split("\n\n")[-1].removeprefix("data: ")
    code: str | None = json.loads(last)["error"]["code"]
    return code


def counted(server: Server) -> dict[str, float]:
    """Return what the requests of a test have counted, those that ended by their reason; no zeros."""
    return {
        sample.labels.get("finished_reason", sample.name.removeprefix("dray_")): sample.value
        for sample in samples_of(page(server.service.metrics.families()))
        if sample.value and sample.name.startswith("dray_")
    }


def fail(error: Exception) -> Callable[[], Any]:
    def then() -> Any:
        raise error

    return then


ERRORS: list[tuple[Exception, int, str, str]] = [
    (BusyError("x"), 429, "server_busy", "rejected"),
    (DeadlineError(1.0), 504, "deadline_exceeded", "timeout"),
    (ZeroDivisionError("secret"), 500, "internal_error", "error"),
]
PATHS = ["v1/completions", "v1/chat/completions"]


@pytest.mark.parametrize(("error", "status", "code", "reason"), ERRORS)
@pytest.mark.parametrize("path", PATHS)
def test_an_error_in_mid_stream_ends_the_stream_with_an_error_event(server, backend, path, error, status, code, reason):
    backend.then = fail(error)
    answer = asked(server, path, stream=True)
    assert (answer.status_code, code_of(answer)) == (200, code)
    assert "[DONE]" not in answer.text
    assert "secret" not in answer.text
    assert counted(server)[reason] == 1
    with server.client() as client, pytest.raises(openai.APIError):
        for _ in client.completions.create(model=MODEL, prompt="a", stream=True, max_tokens=9):
            pass


@pytest.mark.parametrize(("error", "status", "code", "reason"), ERRORS[:2])
@pytest.mark.parametrize("stream", [True, False])
def test_an_error_before_the_first_token_has_a_status_of_its_own(server, backend, stream, error, status, code, reason):
    backend.then = fail(error)
    answer = asked(server, stream=stream, max_tokens=1)
    assert (answer.status_code, code_of(answer)) == (status, code)
    assert counted(server)[reason] == 1
    assert "served_prompt_tokens_total" not in counted(server), "nothing was written to its prompt"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BusyError("marker"), 429, "server_busy"),
        (ValueError("marker: shape '[5, 6]' is invalid"), 500, None),
        (RuntimeError("marker: CUDA error"), 500, None),
        (FailedError("marker: memory ran out"), 500, "generation_failed"),
        (RefusedError("the prompt has too many tokens"), 400, "invalid_value"),
    ],
)
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_failure_while_scoring_is_answered_as_one_while_generating_is_and_without_its_message(
    server, backend, error, status, code, max_tokens
):
    backend.score_fails_with = error
    answer = asked(server, echo=True, logprobs=1, max_tokens=max_tokens)
    assert (answer.status_code, code_of(answer)) == (status, code)
    assert answer.headers.get("retry-after") == ("1" if status == 429 else None)
    assert "marker" not in answer.text


def test_a_client_that_leaves_a_stream_ends_its_generation(server, backend):
    is_waiting = threading.Event()

    async def wait() -> None:
        is_waiting.set()
        await asyncio.Event().wait()

    backend.then = wait
    body = {"prompt": "a", "stream": True, "max_tokens": 9}
    with httpx2.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
        next(answer.iter_lines())
        assert is_waiting.wait(30)
    wait_until(lambda: "cancelled" in counted(server), 30)
    assert backend.num_closed == 1
    expected = {
        "served_prompt_tokens_total": 1,  # what was written for it counts
        "served_generation_tokens_total": 2,
        "spec_decode_num_drafts_total": 1,
        "spec_decode_num_draft_tokens_total": 1,
        "spec_decode_num_accepted_tokens_total": 1,
    }
    assert expected.items() <= counted(server).items()


def test_every_token_and_round_of_a_request_is_counted(server, backend):
    assert asked(server, prompt=[5, 6]).status_code == 200
    expected = {
        "length": 1,
        "served_prompt_tokens_total": 2,
        "served_generation_tokens_total": 3,
        "inter_token_latency_seconds_count": 1,
        "spec_decode_num_drafts_total": 1,
        "spec_decode_num_draft_tokens_total": 1,
        "spec_decode_num_accepted_tokens_per_pos_total": 1,
    }
    assert expected.items() <= counted(server).items()


@pytest.mark.parametrize("path", PATHS)
def test_deltas_that_arrive_together_are_sent_once_and_in_order(server, backend, path):
    """A busy reader gets several deltas of a choice at once, the last of which ends it."""
    backend.is_hurried = True
    answer = asked(server, path, stream=True)
    choices = [json.loads(line[6:])["choices"][0] for line in answer.text.split("\n\n")[:-2]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert choices[-1]["finish_reason"] == "length", "nothing comes behind the end"
    texts = [choice["delta"].get("content") or "" if "chat" in path else choice["text"] for choice in choices]
    assert "".join(texts) == server.service.codec.decode([70, 71, 72])


@pytest.mark.parametrize("stream", [True, False])
def test_a_generation_without_an_ending_is_an_error(server, backend, stream):
    backend.has_end = False
    answer = asked(server, stream=stream)
    assert (answer.status_code, code_of(answer)) == (200 if stream else 500, "generation_failed")
    assert "[DONE]" not in answer.text


@pytest.mark.parametrize("stream", [True, False])
def test_waiting_for_an_engine_ends_at_the_deadline(server, hurried, stream):
    hurried.knows_facts = False
    answer = asked(server, stream=stream)
    assert (answer.status_code, code_of(answer)) == (504, "deadline_exceeded")
    assert httpx2.get(f"{server.url}/v1/models", timeout=30).status_code == 504


@pytest.mark.parametrize("path", ["v1/completions", "tokenize"])
def test_waiting_for_the_encoder_ends_at_the_deadline(server, hurried, path):
    is_free = threading.Event()
    encoding = server.service._encoder._thread.submit(is_free.wait)
    try:
        answer = asked(server, path)
    finally:
        is_free.set()
        encoding.result(30)
    assert (answer.status_code, code_of(answer)) == (504, "deadline_exceeded")


def test_waiting_for_a_token_ends_at_the_deadline_and_so_does_its_generation(server, hurried):
    for number, (stream, max_tokens, status) in enumerate(((True, 9, 200), (True, 1, 504), (False, 9, 504)), start=1):
        answer = asked(server, stream=stream, max_tokens=max_tokens)
        assert (answer.status_code, code_of(answer)) == (status, "deadline_exceeded")
        assert (hurried.num_closed, counted(server)["timeout"]) == (number, number)
