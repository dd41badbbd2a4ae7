"""The gate refuses requests beyond the application's capacity, but only those with a good key."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp, Message

from endpoint.edge.headers import Keys
from endpoint.edge.install import EdgeSettings, install
from endpoint.gate.capacity import Capacity, Claim
from endpoint.gate.gate import Gate
from endpoint.http.events import DONE
from endpoint.service.metrics import ServingMetrics
from tests.endpoint.asking import Asked
from tests.endpoint.gate.eager_proxy import EagerProxy
from tests.endpoint.toy_app import BEARER, KEY, LIMITS, OTHER_KEY
from tests.endpoint.web import ask, samples_of, served

pytestmark = pytest.mark.anyio
MAX_REQUESTS = 2
BODY: dict[str, Any] = {"prompt": "a"}


class Holding:
    """An application that holds its answers back until `/go_on`, and counts its requests."""

    def __init__(self) -> None:
        self.num_asked, self.num_held = 0, 0
        self._go_on = asyncio.Event()

    def app(self, keys: Keys) -> ASGIApp:
        """Return the application, closed with these keys."""
        app, metrics = FastAPI(), ServingMetrics("m")

        @app.post("/v1/completions")
        async def complete(body: dict[str, Any]) -> dict[str, Any]:
            self.num_asked, self.num_held = self.num_asked + 1, self.num_held + 1
            await self._go_on.wait()
            self.num_held -= 1
            return {"choices": [{"text": "done"}]}

        @app.post("/tokenize")
        async def tokenize(body: dict[str, Any]) -> dict[str, Any]:
            return {}

        @app.post("/go_on")
        async def go_on(body: dict[str, Any]) -> dict[str, Any]:
            self._go_on.set()
            return {}

        install(app, EdgeSettings(keys=keys, limits=LIMITS), metrics, MAX_REQUESTS)
        return app


@pytest.fixture
def holding() -> Holding:
    return Holding()


@pytest.fixture
def proxy(holding: Holding) -> EagerProxy:
    return EagerProxy(holding.app(Keys([KEY, OTHER_KEY])))


@pytest.fixture
def port(proxy: EagerProxy) -> Iterator[int]:
    with served(Gate(proxy, LIMITS)) as port:
        yield port


def the_only_claim() -> tuple[Capacity, Claim, dict[str, Any]]:
    """Return the claim of the one request that an application takes."""
    capacity, scope = Capacity(), {"method": "POST", "path": "/v1/completions", "headers": []}
    claim = capacity.claim(scope, "/v1/completions")
    assert claim is not None
    capacity.confirm(claim, 1)
    return capacity, claim, scope


@asynccontextmanager
async def full(holding: Holding, port: int) -> AsyncIterator[tuple[httpx2.AsyncClient, list[Asked]]]:
    """Hold as many requests as the application takes, until the block ends."""
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=BEARER, timeout=60) as client:
        asked = [Asked(client, BODY) for _ in range(MAX_REQUESTS)]
        while holding.num_held < MAX_REQUESTS:
            await asyncio.sleep(0)
        try:
            yield client, asked
        finally:
            assert (await client.post("/go_on", json={})).status_code == 200
            for one in asked:
                await one.end()


def test_requests_beyond_the_capacity_are_refused_without_asking_the_application(holding, port):
    async def scenario() -> None:
        async with full(holding, port) as (client, asked):
            for _ in range(3):
                answer = await client.post("/v1/completions", json=BODY)
                assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
                assert answer.json()["error"]["code"] == "server_busy"
                assert len(answer.headers["x-request-id"]) == 32
            assert holding.num_asked == MAX_REQUESTS
            assert (await client.post("/tokenize", json={})).status_code == 200, "it does not count"
        assert all(one.has_succeeded for one in asked)
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=BEARER) as client:
            for _ in range(2 * MAX_REQUESTS):  # there is room again
                assert (await client.post("/v1/completions", json=BODY)).status_code == 200

    asyncio.run(scenario())
    samples = samples_of(ask(port, "/metrics", headers=BEARER).body)
    assert [s.value for s in samples if s.labels.get("finished_reason") == "rejected"] == [3]
    assert [s.value for s in samples if s.labels.get("status") == "429"] == [3]


async def test_a_client_that_leaves_makes_room(holding, port):
    async with full(holding, port) as (client, asked):
        assert (await client.post("/v1/completions", json=BODY)).status_code == 429
        await asked[0].leave()
        async with asyncio.timeout(60):
            while True:
                late = Asked(client, BODY)
                while holding.num_asked == MAX_REQUESTS and not late.is_over:
                    await asyncio.sleep(0)
                if holding.num_asked > MAX_REQUESTS:
                    break
                assert late.status == 429
        asked[0] = late


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer sk-nobody-has-this-one"}])
async def test_a_stranger_gets_a_401_even_without_room(holding, port, headers):
    async with full(holding, port), httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as stranger:
        assert (await stranger.post("/v1/completions", json=BODY, headers=headers)).status_code == 401


async def test_requests_without_a_key_take_no_room(holding, port):
    for _ in range(3 * MAX_REQUESTS):
        assert ask(port, "/v1/completions", BODY).status == 401
    async with full(holding, port) as (client, _):
        other = {"authorization": f"Bearer {OTHER_KEY}"}
        over = Asked(client, BODY)
        await over.end()
        assert over.status == 429
        # a key that the gate has not seen yet is the application's to judge
        unknown = asyncio.ensure_future(client.post("/v1/completions", json=BODY, headers=other))
        while holding.num_held == MAX_REQUESTS:
            await asyncio.sleep(0)
    assert (await unknown).status_code == 200


async def test_a_revoked_key_takes_no_room(port, proxy, holding):
    taken_back = {"authorization": f"Bearer {OTHER_KEY}"}
    assert ask(port, "/tokenize", {}, headers=taken_back).status == 200
    proxy.deploy(holding.app(Keys([KEY])))
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=taken_back) as former:
        assert (await former.post("/v1/completions", json=BODY)).status_code == 401
        async with full(holding, port):
            assert (await former.post("/v1/completions", json=BODY)).status_code == 401


async def test_a_client_that_does_not_read_its_answer_takes_no_room(monkeypatch):
    monkeypatch.setattr("endpoint.gate.capacity._UNREAD_S", 0.0)
    capacity, first, scope = the_only_claim()
    assert capacity.claim(scope, scope["path"]) is None

    async def never_read(message: Message) -> None:
        await asyncio.Event().wait()

    sending = asyncio.ensure_future(first.releasing(never_read)({"type": "http.response.start"}))
    async with asyncio.timeout(60):
        while capacity.claim(scope, scope["path"]) is None:
            await asyncio.sleep(0)
    assert not sending.done()
    sending.cancel()


async def test_a_stream_makes_room_before_the_client_reads_its_end():
    capacity, claim, scope = the_only_claim()
    is_free = []

    async def look(message: Message) -> None:
        is_free.append((other := capacity.claim(scope, scope["path"])) is not None)
        if other is not None:
            other.release()

    send = claim.releasing(look)
    for body in (b"data: {}\n\n", b"data: {}\n\n" + DONE):
        await send({"type": "http.response.body", "body": body, "more_body": True})
    assert is_free == [False, True]
