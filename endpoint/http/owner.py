"""Owners: what belongs to an API key, by a name that does not tell the key."""

from __future__ import annotations

from hashlib import sha256

from starlette.requests import Request


def owner_of(key: bytes | None) -> str:
    """Return the name of what belongs to a key, a digest; "open" for an endpoint without keys."""
    return "open" if key is None else sha256(b"batches of " + key).hexdigest()[:32]


def owner_of_request(request: Request) -> str:
    """Return the owner that the edge has found for a request."""
    owner: str = getattr(request.state, "owner", owner_of(None))
    return owner
