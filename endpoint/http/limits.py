"""Limits of one request, and the middleware that enforces those of its headers."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from endpoint.http.errors import ApiError, refuse

CLOSE = {"connection": "close"}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How large, how deep and how slow a request may be."""

    max_body_bytes: int = 8 * 2**20
    """Largest body of a request; then 413."""
    body_timeout_s: float = 30.0
    """Seconds from the first look at a body to its last byte; then 408."""
    max_header_bytes: int = 32 * 2**10  # names and values of all headers; also path and query together
    max_headers: int = 100
    max_json_depth: int = 32
    max_bodies: int = 16  # of the largest size, whose bytes all requests of a process together may hold

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("max_body_bytes", "max_header_bytes", "max_headers", "max_json_depth", "max_bodies"):
            if getattr(self, name) < 1:
                raise ValueError(f"serve.{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.body_timeout_s < float("inf"):
            raise ValueError(f"serve.body_timeout_s must be above 0 and finite, got {self.body_timeout_s}")


class HeaderLimits:
    """Middleware that answers 431 when the headers are many or large, and 414 when the URL is."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse one request."""
        if scope["type"] == "http":
            headers, limits = scope["headers"], self._limits
            num_url_bytes = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
            num_bytes = sum(len(name) + len(value) for name, value in headers)
            if num_url_bytes > limits.max_header_bytes:
                await refuse(send, ApiError(414, "The URL is too long.", headers=CLOSE))
                return
            if num_bytes > limits.max_header_bytes or len(headers) > limits.max_headers:
                allowed = f"at most {limits.max_headers} headers of {limits.max_header_bytes} bytes in all"
                await refuse(send, ApiError(431, f"The headers are too large: {allowed}.", headers=CLOSE))
                return
        await self._app(scope, receive, send)


def header(scope: Scope, wanted: bytes) -> bytes | None:
    """Return the first value of a header without spaces around it; None if the request does not have it."""
    return next((value.strip() for name, value in scope["headers"] if name.lower() == wanted), None)
