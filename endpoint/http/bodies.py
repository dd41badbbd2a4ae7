"""Bodies: those that this process takes in and has not answered, each within its limits, and all of them together."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from endpoint.http.errors import ApiError
from endpoint.http.refusal import finish, refuse

_LINGER_SECONDS, _LINGER_BYTES = 2.0, 64 * 2**20
CLOSE = {"connection": "close"}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one request."""

    max_body_bytes: int = 8 * 2**20
    """Largest body of a request; then 413."""
    body_timeout_s: float = 30.0
    """Seconds from the first look at a body to its last byte; then 408."""
    max_header_bytes: int = 32 * 2**10  # names and values of all headers, and path and query
    max_headers: int = 100
    max_json_depth: int = 32
    max_bodies: int = 16  # of the largest size, whose bytes all requests of a process together may hold

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_header_bytes", "max_headers", "max_json_depth", "max_bodies"):
            if getattr(self, name) < 1:
                raise ValueError(f"serve.{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.body_timeout_s < float("inf"):
            raise ValueError(f"serve.body_timeout_s must be above 0 and finite, got {self.body_timeout_s}")


class Incoming:
    """A body as it comes."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_over = self.has_left = False  # the body is; the client has

    async def chunk(self) -> bytes:
        """What came next, maybe nothing."""
        message = await self._receive()
        self.has_left = message["type"] == "http.disconnect"
        self.is_over = self.has_left or not message.get("more_body", False)
        return bytes(message.get("body", b""))

    async def let_pass(self) -> None:
        """Read on for a moment, and keep nothing: a client that still writes would see a reset and no answer."""
        num_bytes = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while not self.is_over and num_bytes < _LINGER_BYTES:
                    num_bytes += len(await self.chunk())


class Bodies:
    """Of one process."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._num_bytes = 0  # of those that come, and of those that are here and still needed

    def check(self, scope: Scope) -> None:
        """Raise ApiError (413, 415) for a body that need not be looked at: what is announced is wrong with it."""
        encoding = header(scope, b"content-encoding")
        if encoding is not None and encoding.lower() != b"identity":
            raise ApiError(415, "A body with a Content-Encoding is not taken.", headers=CLOSE)
        length, most = header(scope, b"content-length"), self.limits.max_body_bytes
        if length is not None and (not length.isdigit() or len(length) > 18 or int(length) > most):
            raise self._too_large()

    async def read(self, scope: Scope, incoming: Incoming) -> bytes | None:
        """The whole body, which counts until `let_go`; None if the client left.

        Raises ApiError (as `check`, 408, or 429 if others fill the room).
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
                        raise _too_many()
            is_here = not incoming.has_left
        except TimeoutError:
            seconds = f"{limits.body_timeout_s:g} s"
            raise ApiError(408, f"The body did not arrive within {seconds}.", headers=CLOSE) from None
        finally:
            if not is_here:
                self._num_bytes -= num_bytes
        return b"".join(chunks) if is_here else None

    def let_go(self, body: bytes) -> None:
        """A body that `read` gave is not needed any more."""
        self._num_bytes -= len(body)

    def _too_large(self) -> ApiError:
        message = f"The body is larger than {self.limits.max_body_bytes} bytes."
        return ApiError(413, message, code="body_too_large", headers=CLOSE)


def _too_many() -> ApiError:
    return ApiError(
        429,
        "The server is busy: it has too many large requests. Try again in a moment.",
        type="rate_limit_error",
        code="server_busy",
        headers={**CLOSE, "Retry-After": "1"},
    )


async def refuse_and_linger(incoming: Incoming, send: Send, error: ApiError) -> None:
    """Answer, and let what is still being written pass."""
    await refuse(send, error, is_last=False)
    if error.status != 408:
        await incoming.let_pass()
    await finish(send)


def header(scope: Scope, wanted: bytes) -> bytes | None:
    """The first value of a header, without spaces around it."""
    return next((value.strip() for name, value in scope["headers"] if name.lower() == wanted), None)
