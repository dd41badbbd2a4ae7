"""Middlewares that read a request's body: within its limits, and as one strict JSON object.

Neither Ray Serve nor its web server limits a body. It is read here, whole, before anything else sees it; a body beyond
its limits is answered at once and never kept.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endpoint.edge.strict_json import parse_json
from endpoint.http.bodies import Bodies, Incoming, refuse_and_drain
from endpoint.http.errors import ApiError, refuse
from endpoint.http.held_body import ask_for_body, is_held_back
from endpoint.http.limits import Limits, header


class BodyLimits:
    """Middleware that hands the body on in one piece, or answers with the limit that it breaks."""

    def __init__(self, app: ASGIApp, limits: Limits, max_requests: int | None = None) -> None:
        """Tell the gate that the application generates for at most `max_requests` at once."""
        self._app, self._bodies, self._max_requests = app, Bodies(limits), max_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        incoming = Incoming(receive)
        try:
            self._bodies.check(scope)
        except ApiError as error:
            if is_held_back(scope):  # the gate drains it
                await refuse(send, error)
            else:
                await refuse_and_drain(incoming, send, error)
            return
        await ask_for_body(scope, send, self._max_requests)
        try:
            body = await self._bodies.read(scope, incoming)
        except ApiError as error:
            await refuse_and_drain(incoming, send, error)
            return
        if body is not None:
            try:
                await self._app(scope, _replay(body, receive), send)
            finally:  # the application keeps it until then, as bytes or as what it has parsed
                self._bodies.release(body)


class JsonBodies:
    """Middleware that refuses a body that is not one strict JSON object, and one that is not declared as JSON."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        """Expect the body as one message, as BodyLimits makes it."""
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
    content_type = (header(scope, b"content-type") or b"").decode("latin-1")
    essence, _, parameters = content_type.partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if essence.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise ApiError(415, "Send the body with the header Content-Type: application/json.")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the whole body first, and then whatever follows it (that the client left)."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed
