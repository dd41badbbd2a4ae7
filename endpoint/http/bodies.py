"""Bodies that this process holds: each within its limits, and all of them together within theirs.

Ray Serve's proxy takes in whatever arrives, whether its application wants it or not. So the gate in front of the proxy
holds a body back (`endpoint/gate/answer.py`) and says so in the ASGI scope. The application behind the proxy looks
at the key and asks for the body by an ASGI message of a kind of our own. The two also exchange counts: the gate says
how many requests it has refused, and the application how many it takes at once (`endpoint/gate/capacity.py`).

Uploads are streamed to the application, which never holds more than a part of one. The gate lets a part in when the
application has said, by messages of our own, that it has taken an earlier one.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from starlette.types import Message, Receive, Scope, Send

from endpoint.http.errors import CLOSE, ApiError, finish, refuse, server_busy
from pipeline.limits import check_numbers

EXTENSION, WANTED = "dray.body_on_demand", "dray.body.wanted"
_LINGER_SECONDS, _LINGER_BYTES = 2.0, 64 * 2**20
UPLOAD_PATH = "/v1/files"
TAKEN = "dray.body.taken"
WINDOW_BYTES = 4 * 2**20  # that may be on their way between gate and application
MAX_EXTRA_BYTES = 64 * 2**10  # of a multipart body, beside the file in it
_TELL_BYTES = WINDOW_BYTES // 4
MAX_UPLOADS = 16  # at once in one process


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How large, how deep and how slow a request may be."""

    max_body_bytes: int = 8 * 2**20
    """Largest body of a request; then 413."""
    body_timeout_s: float = 30.0
    """Seconds from the first look at a body to its last byte; then 408."""
    header_timeout_s: float = 30.0
    """Seconds for the headers of a request, from the opening of its connection; then that is closed."""
    max_header_bytes: int = 32 * 2**10  # names and values of all headers; also path and query together
    max_headers: int = 100
    max_json_depth: int = 32
    max_bodies: int = 16  # of the largest size, whose bytes all requests of a process together may hold

    def __post_init__(self) -> None:
        counts = ("max_body_bytes", "max_header_bytes", "max_headers", "max_json_depth", "max_bodies")
        check_numbers(self, "serve.", at_least_1=counts, finite_seconds=("body_timeout_s", "header_timeout_s"))


def header(scope: Scope, wanted: bytes) -> bytes | None:
    """Return the first value of a header without spaces around it; None if the request does not have it."""
    return next((value.strip() for name, value in scope["headers"] if name.lower() == wanted), None)


class Incoming:
    """The body of one request while it arrives."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_over = self.has_left = False  # the body is over; the client has left

    async def receive(self) -> Message:
        """Return the next message, and note if it says that the client has left."""
        message = await self._receive()
        self.has_left = message["type"] == "http.disconnect"
        return message

    async def chunk(self) -> bytes:
        """Return the bytes that arrive next, possibly none."""
        message = await self.receive()
        self.is_over = self.has_left or not message.get("more_body", False)
        return bytes(message.get("body", b""))

    async def drain(self) -> None:
        """Read on for a moment and keep nothing: a client that is still writing would see a reset and no answer."""
        num_bytes = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while not self.is_over and num_bytes < _LINGER_BYTES:
                    num_bytes += len(await self.chunk())


class Bodies:
    """All bodies in one process."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._num_bytes = 0  # of bodies that are arriving, and of those that are here and still needed
        self._num_kept = 0  # bytes of those that are kept for streams under way; they have as much room again

    def check(self, scope: Scope) -> None:
        """Raise ApiError (413, 415) if the headers already announce a body that cannot be taken."""
        check_encoding(scope)
        if announces_more(scope, self.limits.max_body_bytes):
            raise self._too_large()

    async def read(self, scope: Scope, incoming: Incoming) -> bytes | None:
        """Return the whole body, which takes up room until `release`; None if the client left.

        Raises ApiError (as `check`, 408, or 429 if other bodies fill the room).
        """
        self.check(scope)
        limits, chunks, num_bytes, is_here = self.limits, [], 0, False
        try:
            async with asyncio.timeout(limits.body_timeout_s):
                while not incoming.is_over:
                    chunks.append(await incoming.chunk())
                    num_bytes += len(chunks[-1])
                    self._num_bytes += len(chunks[-1])
                    if num_bytes > limits.max_body_bytes:
                        raise self._too_large()
                    if self._num_bytes > limits.max_bodies * limits.max_body_bytes:
                        raise server_busy("it has too many large requests", CLOSE)
            is_here = not incoming.has_left
        except TimeoutError:
            seconds = f"{limits.body_timeout_s:g} s"
            raise ApiError(408, f"The body did not arrive within {seconds}.", headers=CLOSE) from None
        finally:
            if not is_here:
                self._num_bytes -= num_bytes
        return b"".join(chunks) if is_here else None

    def keep(self, body: bytes) -> bool:
        """Keep a body that `read` returned for the stream that answers it, if there is room among those of streams."""
        if self._num_kept + len(body) > self.limits.max_bodies * self.limits.max_body_bytes:
            return False
        self._num_kept += len(body)
        self._num_bytes -= len(body)
        return True

    def release(self, body: bytes, *, was_kept: bool = False) -> None:
        """Give back the room of a body that `read` returned and that is not needed any more."""
        if was_kept:
            self._num_kept -= len(body)
        else:
            self._num_bytes -= len(body)

    def _too_large(self) -> ApiError:
        message = f"The body is larger than {self.limits.max_body_bytes} bytes."
        return ApiError(413, message, code="body_too_large", headers=CLOSE)


def check_encoding(scope: Scope) -> None:
    """Raise ApiError (415) for a compressed body."""
    encoding = header(scope, b"content-encoding")
    if encoding is not None and encoding.lower() != b"identity":
        raise ApiError(415, "A body with a Content-Encoding is not taken.", headers=CLOSE)


def announces_more(scope: Scope, max_bytes: int) -> bool:
    """Tell whether the request announces a body of more than `max_bytes`, or of a length that is no number."""
    length = header(scope, b"content-length")
    return length is not None and (not length.isdigit() or len(length) > 18 or int(length) > max_bytes)


def has_body(scope: Scope) -> bool:
    """Tell whether the request announces a body."""
    return header(scope, b"content-length") not in (None, b"0") or header(scope, b"transfer-encoding") is not None


def is_held_back(scope: Scope) -> bool:
    """Tell whether the gate holds the body back until the application asks for it."""
    return EXTENSION in (scope.get("extensions") or {})


async def ask_for_body(scope: Scope, send: Send, max_requests: int | None = None) -> None:
    """Ask the gate for the body if it holds it back, and tell it how many requests are generated for at once."""
    if is_held_back(scope):
        await send({"type": WANTED, "max_requests": max_requests})


def num_refused_at_gate(scope: Scope) -> dict[str, int]:
    """Return how many requests the gate has refused for each path since it last reported that."""
    refused: dict[str, int] = (scope.get("extensions") or {}).get(EXTENSION, {}).get("refused", {})
    return refused


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the whole body first, and then whatever follows it (that the client left)."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


async def refuse_and_drain(incoming: Incoming, send: Send, error: ApiError) -> None:
    """Answer with an error, and drain what the client is still writing."""
    await refuse(send, error, is_last=False)
    if error.status != 408:
        await incoming.drain()
    await finish(send)


def is_upload(scope: Scope) -> bool:
    """Tell whether the body of this request is streamed."""
    return scope["method"] == "POST" and str(scope["path"]).removeprefix(scope.get("root_path", "")) == UPLOAD_PATH


class Upload:
    """The body of one upload as the application receives it."""

    def __init__(self, incoming: Incoming, max_bytes: int, timeout_s: float, scope: Scope, send: Send) -> None:
        """Take at most `max_bytes`, of which each part must come within `timeout_s`; tell the gate of `scope`."""
        self._incoming, self._max_bytes, self._timeout_s = incoming, max_bytes, timeout_s
        self._send = send if is_held_back(scope) else None
        self._num_bytes = self._num_told = 0

    async def receive(self) -> Message:
        """Return the next part, or that the client left. Raises ApiError (408, 413)."""
        incoming = self._incoming
        if incoming.is_over:
            return await incoming.receive()
        try:
            async with asyncio.timeout(self._timeout_s):
                chunk = await incoming.chunk()
        except TimeoutError:
            raise upload_too_slow(self._timeout_s) from None
        if incoming.has_left:
            return {"type": "http.disconnect"}
        self._num_bytes += len(chunk)
        if self._num_bytes > self._max_bytes:
            raise upload_too_large(self._max_bytes)
        if self._send is not None and self._num_bytes - self._num_told >= _TELL_BYTES:
            self._num_told = self._num_bytes
            await self._send({"type": TAKEN, "num_bytes": self._num_bytes})
        return {"type": "http.request", "body": chunk, "more_body": not incoming.is_over}


def upload_too_large(max_bytes: int) -> ApiError:
    """Return the error for a body of more than `max_bytes`."""
    message = f"The file is larger than {max(0, max_bytes - MAX_EXTRA_BYTES)} bytes."
    return ApiError(413, message, param="file", code="body_too_large", headers=CLOSE)


def upload_too_slow(timeout_s: float) -> ApiError:
    """Return the error for a body of which nothing came for `timeout_s`."""
    return ApiError(408, f"Nothing of the body arrived for {timeout_s:g} s.", headers=CLOSE)
