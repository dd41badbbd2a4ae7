"""The gate before a real Ray Serve proxy: what it does with each header, and what the proxy would do without it."""

import asyncio
import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from fastapi import FastAPI, Request
from ray import serve

from endpoint.gate.gate import INGRESS_NAME
from tests.endpoint.web import ask, send_raw, status_of

pytestmark = [pytest.mark.ray, pytest.mark.slow]
AT = "/mirror"
api = FastAPI()


@serve.deployment(max_ongoing_requests=20)
@serve.ingress(api)
class Mirror:
    """An application that shows what reaches it behind Serve."""

    def __init__(self) -> None:
        self._events = defaultdict[str, asyncio.Event](asyncio.Event)

    @api.get("/headers")
    async def headers(self, request: Request) -> dict[str, list[str]]:
        return {"names": [name for name, _ in request.headers.items()]}

    @api.get("/late")
    async def late(self) -> str:
        await asyncio.sleep(0.5)
        return "late"

    @api.get("/stay")
    async def stay(self) -> None:
        self._events["arrived"].set()
        try:
            await asyncio.Event().wait()
        finally:
            self._events["left"].set()

    @api.get("/until/{event}")
    async def until(self, event: str) -> None:
        await self._events[event].wait()

    @api.get("/finish")
    async def finish(self, when_there_is: str) -> str:
        self._events["begun"].set()
        while not os.path.exists(when_there_is):
            await asyncio.sleep(0.05)
        return "finished"

    @api.get("/die")
    async def die(self) -> None:
        os._exit(1)

    @api.post("/length")
    async def length(self, request: Request) -> int:
        return len(await request.body())


@pytest.fixture(scope="module")
def behind_serve(serve_port: int) -> Iterator[int]:
    """The port of a Serve with that application."""
    serve.run(Mirror.bind(), name="mirror", route_prefix=AT)
    yield serve_port
    serve.delete("mirror")


def test_the_client_cannot_set_a_time_limit(behind_serve):
    assert ask(behind_serve, f"{AT}/late", headers={"X-Request-Timeout-Seconds": "0.01"}).status == 200
    assert ask(behind_serve, f"{AT}/late", headers={"x-request-timeout-seconds": "\xff"}).status == 200


def test_a_client_that_leaves_is_noticed_despite_its_headers(behind_serve):
    with socket.create_connection(("127.0.0.1", behind_serve)) as connection:
        connection.sendall(f"GET {AT}/stay HTTP/1.1\r\nHost: h\r\nx-request-disconnect-disabled: ?1\r\n\r\n".encode())
        assert ask(behind_serve, f"{AT}/until/arrived").status == 200
    assert ask(behind_serve, f"{AT}/until/left").status == 200, "the application did not notice"


def test_no_header_that_steers_serve_reaches_the_application(behind_serve):
    steering = {
        "X-Request-Timeout-Seconds": "1",
        "x-request-disconnect-disabled": "?1",
        "serve_multiplexed_model_id": "\xff",
        "Serve-Multiplexed-Model-Id": "m",
        "x-session-id": "\xff",
        "x-other": "stays",
    }
    answer = ask(behind_serve, f"{AT}/headers", headers=steering)
    assert answer.status == 200
    names = answer.body.decode()
    assert '"x-other"' in names
    assert not [name for name in steering if f'"{name.lower()}"' in names and name != "x-other"]


def test_only_health_is_open_among_serves_own_paths(behind_serve):
    assert ask(behind_serve, "/-/routes").error["code"] == "unknown_url"
    assert ask(behind_serve, "/-/healthz").status == 200


def test_a_large_body_stops_at_the_gate(behind_serve):
    fits, too_large = (ask(behind_serve, f"{AT}/length", b"x" * num_bytes) for num_bytes in (100_000, 100_001))
    assert (fits.body, too_large.error["code"]) == (b"100000", "body_too_large")


def test_a_slow_body_stops_at_the_gate(behind_serve):
    head = f"POST {AT}/length HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n12345"
    assert status_of(send_raw(behind_serve, head.encode())) == 408


def test_a_request_that_kills_the_application_gets_a_503_without_serves_words(behind_serve):
    serve.run(Mirror.options(name=INGRESS_NAME).bind(), name="mortal", route_prefix="/mortal")
    answer = ask(behind_serve, "/mortal/die")
    serve.delete("mortal")
    assert (answer.status, answer.error["code"]) == (503, "model_unavailable")


def test_without_an_application_clients_are_told_to_try_again(behind_serve):
    answer = ask(behind_serve, "/elsewhere/secret", {"prompt": "a"})
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "model_unavailable", "1")
    assert b"secret" not in answer.body
    assert len(answer.request_ids) == 1
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{behind_serve}/elsewhere", api_key="any", max_retries=0)
    with pytest.raises(openai.InternalServerError) as error:
        client.completions.create(model="m", prompt="a")
    assert error.value.code == "model_unavailable"


def test_requests_in_flight_finish_while_new_requests_get_a_503(behind_serve, tmp_path):
    sign = tmp_path / "sign"
    with ThreadPoolExecutor(1) as pool:
        in_flight = pool.submit(ask, behind_serve, f"{AT}/finish?when_there_is={sign}")
        assert ask(behind_serve, f"{AT}/until/begun").status == 200
        serve.delete("mirror", _blocking=False)
        deadline = time.monotonic() + 30
        while (new := ask(behind_serve, f"{AT}/headers")).status == 200:
            assert time.monotonic() < deadline, "new requests are still taken"
        assert (new.status, new.error["code"]) == (503, "model_unavailable")
        assert not in_flight.done()
        sign.touch()
        assert in_flight.result(60).body == b'"finished"'
