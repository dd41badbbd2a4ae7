"""Bodies that this process holds: each within its limits, and all of them together within theirs."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.types import Receive, Scope, Send

from endpoint.http.errors import ApiError, finish, refuse
from endpoint.http.limits import CLOSE, Limits, header

_LINGER_SECONDS, _LINGER_BYTES = 2.0, 64 * 2**20


class Incoming:
    """The body of one request while it arrives."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_over = self.has_left = False  # the body is over; the client has left

    async def chunk(self) -> bytes:
        """Return the bytes that arrive next, possibly none."""
        message = await self._receive()
        self.has_left = message["type"] == "http.disconnect"
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

    def check(self, scope: Scope) -> None:
        """Raise ApiError (413, 415) if the headers already announce a body that cannot be taken."""
        encoding = header(scope, b"content-encoding")
        if encoding is not None and encoding.lower() != b"identity":
            raise ApiError(415, "A body with a Content-Encoding is not taken.", headers=CLOSE)
        length, max_length = header(scope, b"content-length"), self.limits.max_body_bytes
        if length is not None and (not length.isdigit() or len(length) > 18 or int(length) > max_length):
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
                        raise _too_many()
            is_here = not incoming.has_left
        except TimeoutError:
            seconds = f"{limits.body_timeout_s:g} s"
            raise ApiError(408, f"The body did not arrive within {seconds}.", headers=CLOSE) from None
        finally:
            if not is_here:
                self._num_bytes -= num_bytes
        return b"".join(chunks) if is_here else None

    def release(self, body: bytes) -> None:
        """Give back the room of a body that `read` returned and that is not needed any more."""
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


async def refuse_and_drain(incoming: Incoming, send: Send, error: ApiError) -> None:
    """Answer with an error, and drain what the client is still writing."""
    await refuse(send, error, is_last=False)
    if error.status != 408:
        await incoming.drain()
    await finish(send)
