"""Headers: the request's id, and the headers by which a client could steer Ray Serve.

Ray Serve 2.60 obeys the client: `x-request-timeout-seconds` replaces the server's own time limit (0 removes it), and
`x-request-disconnect-disabled` lets it go on generating for a client that has left. Both are read in its proxy, before
the application (`ray/serve/_private/proxy.py`, `send_request_to_replica`). So the gate removes them in front of the
proxy (`endpoint/gate/gate.py`). If one reaches the application, there is no gate, and the request is refused.
"""

from __future__ import annotations

import re
import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endpoint.http.errors import ApiError, refuse

STEERING_HEADERS = frozenset({b"x-request-timeout-seconds", b"x-request-disconnect-disabled"})
ROUTING_HEADERS = frozenset({b"serve_multiplexed_model_id", b"serve-multiplexed-model-id", b"x-session-id"})
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._~:+/=@-]{1,128}")


class RequestIds:
    """Middleware that names each request: by the client's own id, or by a new one.

    The id is put in `scope["state"]["request_id"]` and on the answer. `scope["state"]["arrived_at"]` is the time at
    which the request came to this process, in seconds of its monotonic clock.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on one request, or refuse it for its id or a steering header."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        error: ApiError | None = None
        try:
            request_id = request_id_of(scope)
            _check_steering(scope)
        except ApiError as refused:
            request_id, error = new_request_id(), refused
        scope.setdefault("state", {}).update(request_id=request_id, arrived_at=time.monotonic())
        send = with_request_id(send, request_id)
        if error is None:
            await self._app(scope, receive, send)
        else:
            await refuse(send, error)


def request_id_of(scope: Scope) -> str:
    """Return the id in `x-request-id`, or a new one. Raises ApiError (400) for a malformed id and for several ids."""
    values = [value for name, value in scope["headers"] if name.lower() == b"x-request-id"]
    if not values:
        return new_request_id()
    if len(values) > 1 or not _REQUEST_ID.fullmatch(values[0]):
        raise ApiError(400, "x-request-id must be 1 to 128 letters, digits or . _ ~ : + / = @ -, and be there once.")
    return str(values[0].decode("ascii"))


def new_request_id() -> str:
    """Return a random id."""
    return uuid.uuid4().hex


def with_request_id(send: Send, request_id: str) -> Send:
    """Return a `send` that puts the id on the answer, once, and tells browsers not to guess at types."""

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            del headers["x-request-id"]
            headers["x-request-id"] = request_id
            headers["x-content-type-options"] = "nosniff"
        await send(message)

    return send_with_id


def _check_steering(scope: Scope) -> None:
    sent = sorted({name.lower().decode() for name, _ in scope["headers"] if name.lower() in STEERING_HEADERS})
    if sent:
        raise ApiError(400, f"The header {sent[0]} is not taken from clients.", param=sent[0])
