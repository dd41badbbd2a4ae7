"""Connections whose headers never end, or never begin: they are closed, and those of patient clients are not."""

import socket
from collections.abc import Iterator

import pytest
import uvicorn.config

from endpoint.gate.gate import Gate, TimedConnection, environment, limit_header_time, middlewares
from endpoint.http.bodies import Limits
from tests.endpoint.gate.eager_proxy import EagerProxy
from tests.endpoint.toy_app import LIMITS, toy_app
from tests.endpoint.web import served, status_of

_SECONDS = 0.3
GET = b"GET /v1/models/toy HTTP/1.1\r\nHost: h\r\n"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(TimedConnection, "header_timeout_s", _SECONDS)
    monkeypatch.setitem(uvicorn.config.HTTP_PROTOCOLS, "auto", "")
    limit_header_time(_SECONDS)
    with served(Gate(EagerProxy(toy_app(keys=None)), LIMITS)) as port:
        yield port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


@pytest.mark.parametrize("begun", [b"", b"G", GET, GET + b"X-Long: " + b"a" * 100])
def test_a_connection_whose_headers_do_not_end_is_closed_in_time(port, begun):
    with connect(port) as connection:
        connection.sendall(begun)
        assert connection.recv(1) == b""  # the time limit of the socket would raise


def test_bytes_that_come_now_and_then_give_no_more_time(port):
    with connect(port) as connection:
        connection.sendall(GET)
        connection.settimeout(_SECONDS / 10)
        num_sent = 0
        while True:
            try:
                assert connection.recv(1) == b""
                break
            except TimeoutError:
                num_sent += connection.send(b"x: y\r\n")
                assert num_sent < 6 * 200, "it is still open after twenty times its time"
            except ConnectionError:
                break


def test_the_headers_of_a_second_request_are_timed_as_well(port):
    with connect(port) as connection:
        connection.sendall(GET + b"\r\n")
        assert status_of(connection.recv(65536)) == 200
        connection.sendall(GET)
        while connection.recv(65536):
            pass


def test_a_request_that_takes_longer_than_its_headers_may_is_answered(port):
    body = b'{"messages": []}'
    with connect(port) as connection:
        head = b"POST /v1/ask HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body))
        connection.settimeout(1.5 * _SECONDS)  # less than the time of a body (`LIMITS`)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(20)
        connection.sendall(body)
        assert status_of(connection.recv(65536)) == 200


def test_the_limits_reach_the_proxys_process_through_its_environment(monkeypatch):
    monkeypatch.setattr(TimedConnection, "header_timeout_s", 0.0)
    monkeypatch.setitem(uvicorn.config.HTTP_PROTOCOLS, "auto", "")
    limits = Limits(header_timeout_s=7.5, max_body_bytes=1000, body_timeout_s=2.25)
    for name, value in environment(limits).items():
        monkeypatch.setenv(name, value)
    (gate,) = middlewares()
    assert gate.kwargs["limits"] == limits
    assert TimedConnection.header_timeout_s == 7.5
    assert uvicorn.config.HTTP_PROTOCOLS["auto"] == "endpoint.gate.gate:TimedConnection"
