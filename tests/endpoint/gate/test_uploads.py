"""Uploads pass the gate in parts: neither the gate nor the proxy behind it ever holds a whole one."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI, Request

from endpoint.edge.headers import Keys
from endpoint.edge.install import EdgeSettings, install
from endpoint.gate.gate import Gate
from endpoint.http.bodies import MAX_EXTRA_BYTES, UPLOAD_PATH, WINDOW_BYTES
from endpoint.service.metrics import ServingMetrics
from tests.endpoint.gate.eager_proxy import EagerProxy
from tests.endpoint.toy_app import BEARER, KEY, LIMITS
from tests.endpoint.web import ask, send_raw, served, status_of

MAX_BYTES = 16 * 2**20
PATIENT = replace(LIMITS, body_timeout_s=20.0)
_CHUNK = 2**20  # more than a server hands on at once


class Slow:
    """An application that takes an upload only when the proxy has taken in all that it gets."""

    def __init__(self) -> None:
        self.app, self.proxy = FastAPI(), EagerProxy(self)
        self.num_waiting = 0  # bytes that the proxy held before the first was taken
        self.reads = True

        @self.app.post(UPLOAD_PATH)
        async def _take(request: Request) -> dict[str, int]:
            if not self.reads:
                return {"num_bytes": 0}
            while self.proxy.num_bytes < WINDOW_BYTES:
                await asyncio.sleep(0.01)
            for _ in range(20):  # more would come now, were it not held back
                await asyncio.sleep(0.01)
            self.num_waiting = self.proxy.num_bytes
            return {"num_bytes": sum([len(chunk) async for chunk in request.stream()])}

        settings = EdgeSettings(keys=Keys([KEY]), limits=PATIENT, max_upload_bytes=MAX_BYTES)
        install(self.app, settings, ServingMetrics("toy"))

    async def __call__(self, *arguments: Any) -> None:
        await self.app(*arguments)


@pytest.fixture(scope="module")
def slow() -> Slow:
    return Slow()


@pytest.fixture(scope="module")
def port(slow: Slow) -> Iterator[int]:
    with served(Gate(slow.proxy, PATIENT)) as port:
        yield port


def test_an_upload_waits_at_the_gate_until_the_application_has_taken_what_came_before(slow, port):
    slow.proxy.num_bytes, body = 0, b"x" * (12 * 2**20)
    answer = ask(port, UPLOAD_PATH, body, headers=BEARER)
    assert answer.status == 200, answer.body
    assert answer.body == b'{"num_bytes":%d}' % len(body)
    assert WINDOW_BYTES <= slow.num_waiting < WINDOW_BYTES + _CHUNK


def test_an_upload_that_is_too_large_is_refused_by_its_announced_length_or_as_it_comes(port):
    too_large = MAX_BYTES + MAX_EXTRA_BYTES + 1
    assert ask(port, UPLOAD_PATH, b"x" * too_large, headers=BEARER).error["code"] == "body_too_large"
    head = f"POST {UPLOAD_PATH} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {KEY}\r\n"
    chunk = b"100000\r\n" + b"x" * 2**20 + b"\r\n"
    received = send_raw(port, head.encode() + b"Transfer-Encoding: chunked\r\n\r\n", chunk * 17, b"0\r\n\r\n")
    assert status_of(received) == 413


def test_an_upload_without_a_key_never_reaches_the_proxy(slow, port):
    slow.proxy.num_bytes = 0
    assert ask(port, UPLOAD_PATH, b"x" * 5_000_000).status == 401
    assert slow.proxy.num_bytes == 0


def test_an_upload_that_is_answered_unread_ends_its_connection(slow, port):
    slow.reads = False
    try:
        answer = ask(port, UPLOAD_PATH, b"x" * (12 * 2**20), headers=BEARER)
    finally:
        slow.reads = True
    assert (answer.status, answer.headers["connection"]) == (200, "close")
