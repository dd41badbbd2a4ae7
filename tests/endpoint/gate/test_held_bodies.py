"""The key first, then the body: what the gate lets in, and when."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from endpoint.edge.headers import Keys
from endpoint.gate.gate import Gate
from endpoint.http.bodies import ask_for_body
from tests.endpoint.gate.eager_proxy import EagerProxy
from tests.endpoint.toy_app import BEARER, KEY, LIMITS, toy_app
from tests.endpoint.web import ask, send_raw, served, status_of

TEXT = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
HEAD = b"POST /v1/ask HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
WITH_KEY = HEAD + f"Authorization: Bearer {KEY}\r\n".encode()
WRONG_KEY = HEAD + b"Authorization: Bearer sk-nobody-has-this-one\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def proxy() -> EagerProxy:
    return EagerProxy(toy_app(keys=Keys([KEY])))


@pytest.fixture(scope="module")
def port(proxy: EagerProxy) -> Iterator[int]:
    with served(Gate(proxy, LIMITS)) as port:
        yield port


@pytest.mark.usefixtures("lingers_briefly")
@pytest.mark.parametrize("head", [HEAD, WRONG_KEY], ids=["no key", "a wrong key"])
@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 15000\r\n\r\n" + b"{" * 5000,
        b"Content-Length: 15000\r\n\r\n",
        CHUNKED + b"1388\r\n" + b"{" * 5000,
        b"Content-Length: 99999999999\r\n\r\n",
    ],
    ids=["begun", "not begun", "chunked", "too large"],
)
def test_a_client_without_a_key_is_answered_without_its_body_and_disconnected(proxy, port, head, rest):
    proxy.num_bytes = 0
    received = send_raw(port, head + rest)
    assert status_of(received) == 401
    assert b"connection: close" in received.lower()
    assert proxy.num_bytes == 0


def test_a_client_that_writes_64_mb_without_a_key_reads_a_401(proxy, port):
    proxy.num_bytes = 0
    assert ask(port, "/v1/ask", b"x" * 64_000_000).error["code"] == "missing_api_key"
    assert proxy.num_bytes == 0


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize("rest", [b"Content-Length: 5000\r\n\r\n" + b"x" * 5000, CHUNKED + b"5\r\nxxxxx\r\n0\r\n\r\n"])
def test_a_public_path_takes_no_body(proxy, port, method, rest):
    proxy.num_bytes = 0
    received = send_raw(port, method + b" /health HTTP/1.1\r\nHost: h\r\n" + rest)
    assert status_of(received) == 413
    assert b"connection: close" in received.lower()
    assert proxy.num_bytes == 0
    assert ask(port, "/health").status == 200


@pytest.mark.parametrize(("headers", "status"), [({}, 413), ({"content-encoding": "gzip"}, 415)])
def test_a_client_that_writes_64_mb_with_a_key_reads_its_error(proxy, port, headers, status):
    proxy.num_bytes = 0
    assert ask(port, "/v1/ask", b"x" * 64_000_000, headers={**BEARER, **headers}).status == status
    assert proxy.num_bytes == 0


def test_an_answer_that_a_body_breaks_off_is_ended():
    async def hasty(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        await ask_for_body(scope, send)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ab", "more_body": True})
        await receive()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    with served(Gate(EagerProxy(hasty), LIMITS)) as port:
        assert ask(port, "/v1/ask", b"x" * 64_000_000).body == b"ab"


def test_a_body_with_a_key_is_let_in_and_the_connection_stays(port):
    answer = ask(port, "/v1/ask", TEXT, headers=BEARER)
    assert (answer.status, answer.body) == (200, b'{"num_messages":1}')
    assert "connection" not in answer.headers
    chunked = CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(TEXT), TEXT)
    twice = send_raw(port, (WITH_KEY + chunked) + WITH_KEY + b"Connection: close\r\n" + chunked)
    assert twice.count(b'{"num_messages":1}') == 2


@pytest.mark.usefixtures("lingers_briefly")
def test_expect_100_continue_is_answered_only_with_a_key(port):
    expecting = b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(TEXT)
    assert send_raw(port, WITH_KEY + expecting, TEXT).startswith(b"HTTP/1.1 100")
    assert send_raw(port, HEAD + expecting).startswith(b"HTTP/1.1 401")


@pytest.mark.usefixtures("lingers_briefly")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"Content-Length: 20001\r\n\r\n", 413),
        (CHUNKED + (b"1388\r\n" + b" " * 5000 + b"\r\n") * 5, 413),
        (b"Content-Length: 100\r\n\r\n{", 408),
        (b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 415),
    ],
)
def test_the_limits_of_a_body_hold_after_it_was_asked_for(port, body, status):
    assert status_of(send_raw(port, WITH_KEY + body)) == status
    assert ask(port, "/v1/ask", TEXT, headers=BEARER).status == 200


def test_an_application_that_fails_over_a_body_still_answers(port):
    body = json.dumps({"messages": [{"role": "user", "content": "x"}]}).encode()
    assert ask(port, "/v1/fail", body, headers=BEARER).status == 500


def test_a_client_of_an_application_that_never_asks_for_the_body_gets_a_503():
    async def asleep(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        await asyncio.Event().wait()

    with served(Gate(EagerProxy(asleep), LIMITS)) as port:
        assert ask(port, "/v1/ask", TEXT).error["code"] == "model_unavailable"


def test_other_applications_get_bodies_at_once_and_answer_for_themselves():
    async def echo(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        message = await receive()
        status = 409 if message["body"] == b"no" else 200
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": message["body"]})

    with served(Gate(EagerProxy(echo, "another"), LIMITS)) as port:
        assert ask(port, "/v1/ask", TEXT).body == TEXT
        assert (ask(port, "/", b"no").status, ask(port, "/", b"no").body) == (409, b"no")
        assert ask(port, "/v1/ask", b"x" * 20_001).status == 413
