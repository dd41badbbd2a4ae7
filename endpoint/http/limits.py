"""Limits of one request."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

from pipeline.limits import check_numbers

CLOSE = {"connection": "close"}


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
