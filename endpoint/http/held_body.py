"""A body that the gate holds back until the application has seen the key and asks for it.

Ray Serve's proxy takes in whatever arrives, whether its application wants it or not. So the gate in front of the proxy
holds the body back (`endpoint/gate/held_body.py`) and says so in the ASGI scope. The application behind the proxy looks
at the key and asks for the body by an ASGI message of a kind of our own. The two also exchange counts: the gate says
how many requests it has refused, and the application how many it takes at once (`endpoint/gate/capacity.py`).
"""

from __future__ import annotations

from starlette.types import Scope, Send

from endpoint.http.limits import header

EXTENSION, WANTED = "dray.body_on_demand", "dray.body.wanted"


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
