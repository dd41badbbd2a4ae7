"""A proxy in front of an S3 server that fails as real stores do: HTTP errors, cut connections, on real sockets."""

import http.client
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

_TEXTS = {
    403: "AccessDenied",
    408: "RequestTimeout",
    429: "TooManyRequests",
    500: "InternalError",
    502: "BadGateway",
    503: "SlowDown",
}
_PER_CONNECTION = {"connection", "transfer-encoding", "content-length", "expect", "server", "date"}


@dataclass
class Failure:
    """Fail the next `times` requests whose "METHOD path" matches: an HTTP status, or "reset" for a cut connection.

    With `after_forwarding` the server does what was asked, and the client never hears of it.
    """

    pattern: str
    how: int | Literal["reset"]
    times: int = 1
    after_forwarding: bool = False


@dataclass
class FlakyProxy:
    """A proxy that forwards to `upstream` and fails as `failures` say; `requests` has each request, "METHOD path"."""

    upstream: str
    failures: list[Failure] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    address: str = ""

    def next_failure(self, request: str) -> Failure | None:
        """Return the failure that is due for this request, if any, and count it down."""
        with self.lock:
            self.requests.append(request)
            for failure in self.failures:
                if failure.times and re.search(failure.pattern, request):
                    failure.times -= 1
                    return failure
        return None


@contextmanager
def flaky_proxy(upstream: str) -> Iterator[FlakyProxy]:
    """Run a proxy while the block lasts; its `address` is its host:port."""
    proxy = FlakyProxy(upstream)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self._body()
            failure = proxy.next_failure(f"{self.command} {self.path}")
            if failure is not None and not failure.after_forwarding:
                return self._fail(failure.how)
            upstream_connection = http.client.HTTPConnection(proxy.upstream, timeout=20)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _PER_CONNECTION}
            upstream_connection.request(self.command, self.path, body, headers)
            answer = upstream_connection.getresponse()
            content = answer.read()
            if failure is not None:
                return self._fail(failure.how)
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _PER_CONNECTION:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(content)
            upstream_connection.close()

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _fail(self, how: int | Literal["reset"]) -> None:
            self.close_connection = True
            if how == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                return
            text = f"<?xml version='1.0'?><Error><Code>{_TEXTS[how]}</Code><Message>planted</Message></Error>".encode()
            self.send_response_only(how)
            self.send_header("Content-Length", str(len(text)))
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Close the connection without a word: a client may be gone, and a test cuts connections."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    proxy.address = f"127.0.0.1:{server.server_address[1]}"
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
