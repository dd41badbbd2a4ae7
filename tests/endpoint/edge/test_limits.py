"""Requests that are too large, too slow, or not what they say."""

import asyncio
import json
import socket
from contextlib import suppress

import pytest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from endpoint.edge.headers import Keys
from endpoint.edge.install import Edge, EdgeSettings
from endpoint.http.bodies import Limits
from endpoint.service.metrics import ServingMetrics
from tests.endpoint.toy_app import BEARER, KEY, LIMITS, toy_app
from tests.endpoint.web import ask, send_raw, served, status_of

GOOD = {"messages": [{"role": "user", "content": "hello"}]}
HEAD = f"POST /v1/ask HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n".encode()
TEXT = json.dumps(GOOD).encode()
MALFORMED_LENGTHS = [b"-1", b"1e3", b"0x10", b"ten", b"5, 6", b""]


def of_size(num_bytes: int) -> bytes:
    return TEXT + b" " * (num_bytes - len(TEXT))


def chunked(*chunks: bytes, ended: bool = True) -> bytes:
    sent = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + sent + (b"0\r\n\r\n" if ended else b"")


def test_a_body_may_be_as_large_as_the_limit_and_not_a_byte_larger(toy):
    assert ask(toy, "/v1/ask", of_size(LIMITS.max_body_bytes), headers=BEARER).status == 200
    answer = ask(toy, "/v1/ask", of_size(LIMITS.max_body_bytes + 1), headers=BEARER)
    assert answer.status == 413
    assert answer.error == {
        "message": "The body is larger than 20000 bytes.",
        "type": "invalid_request_error",
        "param": None,
        "code": "body_too_large",
    }


def test_a_client_that_writes_64_mb_before_it_reads_gets_its_413(toy):
    assert ask(toy, "/v1/ask", b"x" * 64_000_000, headers=BEARER).status == 413


@pytest.mark.usefixtures("lingers_briefly")
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (chunked(TEXT), 200),
        (chunked(*[b" " * 5000] * 5), 413),
        (chunked(*[b" " * 5000] * 5, ended=False), 413),
        *((HEAD + b"Content-Length: %b\r\n\r\nabc" % wrong, 400) for wrong in MALFORMED_LENGTHS),
        (HEAD.replace(KEY.encode(), b"wrong") + b"Connection: close\r\nContent-Length: 10000\r\n\r\n{", 401),
    ],
    ids=["chunks", "too many chunks", "too many without an end", *map(str, MALFORMED_LENGTHS), "no key, half a body"],
)
def test_a_body_is_judged_as_it_arrives(toy, sent, status):
    assert status_of(send_raw(toy, sent)) == status


@pytest.mark.usefixtures("lingers_briefly")
@pytest.mark.parametrize("length", [b"99999999999", b"99999999999999999999999999"])
def test_a_length_beyond_the_limit_is_answered_before_the_body(toy, length):
    assert status_of(send_raw(toy, HEAD + b"Content-Length: " + length + b"\r\n\r\n")) in (400, 413)


def test_a_length_and_chunks_at_once_are_not_taken_for_two_requests(toy):
    smuggled = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"
    received = send_raw(toy, HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled)
    assert received.count(b"HTTP/1.1 ") == 1
    assert status_of(received) == 400


def test_a_content_length_longer_than_the_body_ends_with_the_time_limit(toy):
    received = send_raw(toy, HEAD + b"Content-Length: 100\r\n\r\n{")
    assert status_of(received) == 408
    assert b"did not arrive within 0.5 s" in received


def test_bytes_behind_a_short_content_length_are_a_request_that_needs_a_key(toy):
    rest = b"GET /v1/models/a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    received = send_raw(toy, HEAD + b"Content-Length: %d\r\n\r\n" % len(TEXT) + TEXT + rest)
    assert [int(line[:3]) for line in received.split(b"HTTP/1.1 ")[1:]] == [200, 401]


def test_a_body_that_arrives_byte_by_byte_is_cut_off(toy):
    with socket.create_connection(("127.0.0.1", toy), timeout=30) as connection:
        connection.sendall(HEAD + b"Content-Length: 10000\r\n\r\n")
        connection.settimeout(0.05)
        received = b""
        for _ in range(600):
            connection.sendall(b" ")
            with suppress(TimeoutError):
                received = connection.recv(65536)
                break
    assert status_of(received) == 408


def test_slow_clients_do_not_keep_others_waiting(toy):
    slow = [socket.create_connection(("127.0.0.1", toy)) for _ in range(30)]
    try:
        for connection in slow:
            connection.sendall(HEAD + b"Content-Length: 10000\r\n\r\n{")
        assert ask(toy, "/v1/ask", GOOD, headers=BEARER).status == 200
    finally:
        for connection in slow:
            connection.close()


def test_bodies_share_one_room_and_a_body_without_room_gets_a_429():
    limits = Limits(max_body_bytes=20_000, max_bodies=1)
    first, second = of_size(20_000), of_size(15_000)
    with served(toy_app(keys=Keys([KEY]), limits=limits)) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(HEAD + b"Connection: close\r\nContent-Length: 20000\r\n\r\n" + first[:10_000])
            answers = [ask(port, "/v1/ask", second, headers=BEARER) for _ in range(3)]
            while answers[-1].status == 200:  # the first one's bytes are on their way
                answers.append(ask(port, "/v1/ask", second, headers=BEARER))
            assert (answers[-1].status, answers[-1].error["code"]) == (429, "server_busy")
            assert answers[-1].headers["retry-after"] == "1"
            connection.sendall(first[10_000:])
            assert status_of(connection.recv(65536)) == 200
        assert ask(port, "/v1/ask", first, headers=BEARER).status == 200, "there is room again"


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "x"])
def test_a_compressed_body_is_refused(toy, encoding):
    answer = ask(toy, "/v1/ask", TEXT, headers={**BEARER, "content-encoding": encoding})
    assert (answer.status, answer.error["message"]) == (415, "A body with a Content-Encoding is not taken.")
    assert ask(toy, "/v1/ask", TEXT, headers={**BEARER, "content-encoding": "identity"}).status == 200


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json", "text/json"],
)
def test_a_body_that_is_not_declared_as_json_is_refused(toy, kind):
    answer = ask(toy, "/v1/ask", TEXT, headers={**BEARER, "content-type": kind})
    message = "Send the body with the header Content-Type: application/json."
    assert (answer.status, answer.error["message"]) == (415, message)


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"']
)
def test_every_spelling_of_the_json_content_type_is_accepted(toy, kind):
    assert ask(toy, "/v1/ask", TEXT, headers={**BEARER, "content-type": kind}).status == 200


@pytest.mark.parametrize(
    "headers",
    [{"x-long": "x" * 5000}, {f"x-{number}": "1" for number in range(30)}, {f"x-{n}": "x" * 500 for n in range(10)}],
    ids=["one that is long", "many", "many that are long"],
)
def test_headers_beyond_the_limit_are_a_431(toy, headers):
    answer = ask(toy, "/v1/models/a", headers={**BEARER, **headers})
    assert answer.status == 431
    assert answer.error["message"] == "The headers are too large: at most 20 headers of 4096 bytes in all."


def test_a_url_beyond_the_limit_is_a_414(toy):
    assert ask(toy, "/v1/models/" + "a" * 5000, headers=BEARER).status == 414
    assert ask(toy, "/v1/models/a?" + "a" * 5000, headers=BEARER).status == 414


@pytest.mark.anyio
async def test_a_body_takes_up_room_until_it_is_answered():
    """A request that waits for an engine keeps its body in memory."""
    may_answer, is_full = asyncio.Event(), asyncio.Event()
    statuses: list[int] = []
    num_asked = 0

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 2:
            is_full.set()
        await may_answer.wait()
        await Response()(scope, receive, send)

    app = Edge(waits, EdgeSettings(keys=None, limits=Limits(max_body_bytes=100, max_bodies=2)), ServingMetrics("m"))

    async def ask_with(body: bytes) -> None:
        left: list[Message] = [{"type": "http.request", "body": body}]

        async def receive() -> Message:
            return left.pop() if left else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await app({"type": "http", "method": "PUT", "headers": []}, receive, send)

    waiting = [asyncio.ensure_future(ask_with(b"x" * 100)) for _ in range(2)]
    await is_full.wait()
    await asyncio.wait_for(ask_with(b"x"), 60)
    may_answer.set()
    await asyncio.gather(*waiting)
    await ask_with(b"x" * 100)
    assert statuses == [429, 200, 200, 200]


@pytest.mark.anyio
async def test_an_upload_that_finds_no_room_gets_a_429_at_once_and_one_that_ends_makes_room(monkeypatch):
    monkeypatch.setattr("endpoint.edge.install.MAX_UPLOADS", 2)
    may_end, statuses, num_begun = asyncio.Event(), list[int](), 0

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_begun
        num_begun += 1
        await may_end.wait()
        await Response()(scope, receive, send)

    app = Edge(waits, EdgeSettings(keys=None, max_upload_bytes=100), ServingMetrics("m"))

    async def upload() -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b"x", "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await app({"type": "http", "method": "POST", "path": "/v1/files", "headers": []}, receive, send)

    waiting = [asyncio.ensure_future(upload()) for _ in range(2)]
    while num_begun < 2:
        await asyncio.sleep(0)
    await asyncio.wait_for(upload(), 60)
    may_end.set()
    await asyncio.gather(*waiting)
    await upload()
    assert statuses == [429, 200, 200, 200]
