"""A server with nothing under it, and requests as no well-behaved client would send them."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


@dataclass(frozen=True)
class Answer:
    """An answer as it came back."""

    status: int
    headers: dict[str, str]  # of equal names the last one
    body: bytes
    request_ids: tuple[str, ...] = ()

    @property
    def error(self) -> dict[str, Any]:
        """The error of a body that is in the OpenAI form, and nothing else."""
        value = json.loads(self.body)
        assert value.keys() == {"error"}, value
        error: dict[str, Any] = value["error"]
        assert error.keys() == {"message", "type", "param", "code"}, error
        assert self.headers["content-type"] == "application/json"
        return error


@contextmanager
def served(app: Any) -> Iterator[int]:
    """The port of a real web server that serves `app` in a thread of this process."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


def ask(
    port: int, path: str, body: Any = None, *, method: str | None = None, headers: dict[str, str] | None = None
) -> Answer:
    """Send one request; `body` that is not bytes is sent as JSON."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    all_headers = dict(headers or {})
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    if body is not None and not any(name.lower() == "content-type" for name in all_headers):
        all_headers["content-type"] = "application/json"
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, body, all_headers)
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        request_ids = tuple(value for name, value in response.getheaders() if name.lower() == "x-request-id")
        return Answer(response.status, names, response.read(), request_ids)
    finally:
        connection.close()


def samples_of(page: str | bytes) -> list[Sample]:
    """The samples of a page of metrics."""
    text = page if isinstance(page, str) else page.decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def send_raw(port: int, *pieces: bytes) -> bytes:
    """Write pieces to a connection and read all that comes back until the server closes it."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for piece in pieces:
            connection.sendall(piece)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


def status_of(received: bytes) -> int:
    """The status of the first answer in what came back."""
    assert received.startswith(b"HTTP/1.1 "), received[:80]
    return int(received[9:12])
