"""How large, how deep and how slow a request may be; what is beyond is answered at once, and never kept.

Neither Ray Serve nor its web server limits a body. The body is read here, whole, before anything else sees it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endpoint.errors import ApiError
from endpoint.refusal import finish, refuse
from endpoint.strict_json import parse_json

_LINGER_SECONDS, _LINGER_BYTES = 2.0, 64 * 2**20
_CLOSE = {"connection": "close"}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one request."""

    max_body_bytes: int = 8 * 2**20
    max_header_bytes: int = 32 * 2**10  # names and values of all headers, and path and query
    max_headers: int = 100
    max_json_depth: int = 32
    body_seconds: float = 30.0  # from the first look at the body to its last byte

    def __post_init__(self) -> None:
        if min(self.max_body_bytes, self.max_header_bytes, self.max_headers, self.max_json_depth) < 1:
            raise ValueError(f"limits must be positive, got {self}")
        if not 0 < self.body_seconds < float("inf"):
            raise ValueError(f"body_seconds must be positive and finite, got {self.body_seconds}")


class HeaderLimits:
    """Answers 431 when the headers are many or large, and 414 when the path is."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse one request."""
        if scope["type"] == "http":
            headers, limits = scope["headers"], self._limits
            num_path_bytes = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
            num_bytes = sum(len(name) + len(value) for name, value in headers)
            if num_path_bytes > limits.max_header_bytes:
                await refuse(send, ApiError(414, "The URL is too long.", headers=_CLOSE))
                return
            if num_bytes > limits.max_header_bytes or len(headers) > limits.max_headers:
                few = f"at most {limits.max_headers} headers of {limits.max_header_bytes} bytes in all"
                await refuse(send, ApiError(431, f"The headers are too large: {few}.", headers=_CLOSE))
                return
        await self._app(scope, receive, send)


class BodyLimits:
    """Reads the body within its limits and hands it on in one piece; 413, 408 or 415 otherwise."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        incoming = _Incoming(receive)
        try:
            body = await self._read(scope, incoming)
        except ApiError as error:
            await _refuse_and_linger(incoming, send, error)
            return
        if body is not None:
            await self._app(scope, _replay(body, receive), send)

    async def _read(self, scope: Scope, incoming: _Incoming) -> bytes | None:
        """The body; None if the client left."""
        encoding = _header(scope, b"content-encoding")
        if encoding is not None and encoding.lower() != b"identity":
            raise ApiError(415, "A body with a Content-Encoding is not taken.", headers=_CLOSE)
        length = _header(scope, b"content-length")
        if length is not None and (not length.isdigit() or len(length) > 18 or int(length) > self._max_bytes):
            raise self._too_large()
        chunks, num_bytes = [], 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while not incoming.is_over:
                    chunks.append(await incoming.chunk())
                    num_bytes += len(chunks[-1])
                    if num_bytes > self._max_bytes:
                        raise self._too_large()
        except TimeoutError:
            seconds = f"{self._limits.body_seconds:g} s"
            raise ApiError(408, f"The body did not arrive within {seconds}.", headers=_CLOSE) from None
        return None if incoming.has_left else b"".join(chunks)

    @property
    def _max_bytes(self) -> int:
        return self._limits.max_body_bytes

    def _too_large(self) -> ApiError:
        message = f"The body is larger than {self._max_bytes} bytes."
        return ApiError(413, message, code="body_too_large", headers=_CLOSE)


class _Incoming:
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


async def _refuse_and_linger(incoming: _Incoming, send: Send, error: ApiError) -> None:
    """Answer, then read on for a moment: a client that is still writing would otherwise see a reset, no answer."""
    await refuse(send, error, is_last=False)
    num_bytes = 0
    if error.status != 408:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while not incoming.is_over and num_bytes < _LINGER_BYTES:
                    num_bytes += len(await incoming.chunk())
    await finish(send)


class JsonBodies:
    """Refuses a body that is not one strict JSON object (`parse_json`), and a POST that does not say it is JSON."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        """To stand behind BodyLimits, which makes the body one message."""
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse one request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        message = await receive()
        body = message.get("body", b"")
        try:
            if body:
                _check_type(scope)
                parse_json(body, self._limits.max_json_depth)
        except ApiError as error:
            await refuse(send, error)
            return
        await self._app(scope, _replay(body, receive), send)


def _check_type(scope: Scope) -> None:
    content_type = (_header(scope, b"content-type") or b"").decode("latin-1")
    essence, _, parameters = content_type.partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if essence.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise ApiError(415, "Send the body with the header Content-Type: application/json.")


def _header(scope: Scope, wanted: bytes) -> bytes | None:
    return next((value.strip() for name, value in scope["headers"] if name.lower() == wanted), None)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body first, whole, and then what comes after it (that the client left)."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed
