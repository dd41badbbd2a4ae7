"""Requests that kill their replicas, and clients that leave: what becomes of the others."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import openai
import pytest

from actors.engine.loop import EngineStats
from tests.endpoint.in_process import MODEL
from tests.endpoint.on_serve.application import (
    POISON,
    SLOW,
    Served,
    engine_stats,
    is_alive,
    kill,
    replica_pids,
    serving_fragile,
)
from tests.endpoint.toy_app import KEY
from tests.jobs.runs import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


@contextmanager
def leaving(served: Served, body: dict[str, Any]) -> Iterator[BinaryIO]:
    """Send a request, yield the lines of its answer, and leave when the block ends."""
    text = json.dumps({"model": MODEL, **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
        connection.sendall(head.encode() + text)
        with connection.makefile("rb") as lines:
            yield lines


def is_writing(lines: BinaryIO) -> None:
    """Return when the first event is there."""
    while not lines.readline().startswith(b"data:"):
        pass


def test_a_request_that_kills_engines_is_given_up_after_two(serve_port, text_pair):
    with serving_fragile(serve_port, text_pair, 3) as served, served.client(timeout=300) as client:
        before = replica_pids()
        for stream in (True, False):
            served.wait_until_whole()
            with pytest.raises(openai.InternalServerError) as refused:
                client.completions.create(model=MODEL, prompt=[POISON, 5], max_tokens=4, stream=stream)
            assert (refused.value.status_code, refused.value.code) == (500, "engine_lost")
            assert "ActorDied" not in str(refused.value)
            if stream:
                assert sum(map(is_alive, before)) == 1, "a third one was given to it"
        answer = client.completions.create(model=MODEL, prompt="hello", max_tokens=8, seed=1)
        assert answer.choices[0].text == served.offline("hello", max_tokens=8, seed=1)[0]["text"]


def test_a_client_that_leaves_frees_its_slot_at_every_stage(serve_port, text_pair):
    with serving_fragile(serve_port, text_pair, 1, num_slots=1, max_prefill_tokens=8) as served:
        long = {"max_tokens": 240, "prompt": [SLOW, 5], "stream": True, "ignore_eos": True}

        def cancelled() -> float:
            return served.metric("dray_requests_finished_total", finished_reason="cancelled")

        def engine() -> EngineStats:
            (stats,) = engine_stats()
            return stats

        def is_free() -> bool:
            return engine().num_running == 0

        with leaving(served, long) as answer:
            is_writing(answer)
        wait_until(is_free)
        with leaving(served, {**long, "prompt": [SLOW, *range(5, 55)] * 4}):
            wait_until(lambda: engine().num_running == 1)
        wait_until(is_free)
        with leaving(served, long) as answer:
            is_writing(answer)
            with leaving(served, {**long, "prompt": [SLOW, 6]}):
                wait_until(lambda: engine().num_waiting == 1)
            wait_until(lambda: engine().num_waiting == 0)
            assert engine().num_running == 1
        wait_until(is_free)
        wait_until(lambda: cancelled() == 4)
        (pid,) = replica_pids()
        kill(pid)
        with leaving(served, long):
            wait_until(lambda: served.metric("dray_num_requests_waiting") == 1)
        wait_until(lambda: cancelled() == 5)
        served.wait_until_whole()
        with served.client() as client:  # and the engine that comes is all the next one's
            assert client.completions.create(model=MODEL, prompt=[5, 6], max_tokens=2).choices
