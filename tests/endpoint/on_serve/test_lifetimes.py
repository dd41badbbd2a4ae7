"""Requests and the replicas that they are with: who dies or leaves, and what becomes of the others."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import openai
import pytest

from tests.endpoint.fragile import POISON, SLOW
from tests.endpoint.server import MODEL
from tests.endpoint.serving import Served, alive, is_up, kill, numbers, replica_names, serving, until
from tests.endpoint.toy_app import KEY

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


@contextmanager
def leaving(served: Served, body: dict[str, Any]) -> Iterator[BinaryIO]:
    """What comes back, line by line, to a client that is gone when the block ends."""
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


def test_a_request_that_kills_its_engine_kills_two_and_is_told_so(serve_port: int, text_pair: tuple[str, str]) -> None:
    with serving(serve_port, text_pair, num_replicas=3) as served, served.client() as client:
        before = replica_names()
        for stream in (True, False):
            until(is_up, 180)
            with pytest.raises(openai.InternalServerError) as refused:
                client.completions.create(model=MODEL, prompt=[POISON, 5], max_tokens=4, stream=stream)
            assert (refused.value.status_code, refused.value.code) == (500, "engine_lost")
            assert "ActorDied" not in str(refused.value)
            if stream:
                assert len(before & alive()) == 1, "a third one was given to it"
        answer = client.completions.create(model=MODEL, prompt=[5, 6], max_tokens=8, seed=1)
        assert [answer.choices[0].text] == served.expected([5, 6], 1, max_tokens=8)


def test_who_leaves_frees_what_it_held_wherever_it_was(serve_port: int, text_pair: tuple[str, str]) -> None:
    with serving(serve_port, text_pair, num_replicas=1, num_slots=1, max_prefill_tokens=8) as served:
        long = {"max_tokens": 240, "prompt": [SLOW, 5], "stream": True, "ignore_eos": True}

        def cancelled() -> float:
            return served.metric("dray_requests_finished_total", finished_reason="cancelled")

        def is_free() -> bool:
            return numbers()[0].num_running == 0

        with leaving(served, long) as answer:
            is_writing(answer)
        until(is_free)
        with leaving(served, {**long, "prompt": [SLOW, *range(5, 55)] * 4}):
            until(lambda: numbers()[0].num_running == 1)
        until(is_free)
        with leaving(served, long) as answer:
            is_writing(answer)
            with leaving(served, {**long, "prompt": [SLOW, 6]}):
                until(lambda: numbers()[0].num_waiting == 1)
            until(lambda: numbers()[0].num_waiting == 0)
            assert numbers()[0].num_running == 1
        until(is_free)
        until(lambda: cancelled() == 4)
        (name,) = replica_names()
        kill(name)
        with leaving(served, long):
            until(lambda: served.metric("dray_num_requests_waiting") == 1)
        until(lambda: cancelled() == 5)
        until(is_up, 180)
        with served.client() as client:  # and the engine that comes is all the next one's
            assert client.completions.create(model=MODEL, prompt=[5, 6], max_tokens=2).choices
