"""How large, how deep and how slow a request may be; what is beyond is answered at once, and never kept.

Neither Ray Serve nor its web server limits a body. The body is read here, whole, before anything else sees it.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endpoint.edge.json_bodies import parse_json
from endpoint.http.bodies import CLOSE, Bodies, Incoming, Limits, header, refuse_and_linger
from endpoint.http.errors import ApiError
from endpoint.http.held_bodies import ask_for_body, is_held_back
from endpoint.http.refusal import refuse


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
                await refuse(send, ApiError(414, "The URL is too long.", headers=CLOSE))
                return
            if num_bytes > limits.max_header_bytes or len(headers) > limits.max_headers:
                few = f"at most {limits.max_headers} headers of {limits.max_header_bytes} bytes in all"
                await refuse(send, ApiError(431, f"The headers are too large: {few}.", headers=CLOSE))
                return
        await self._app(scope, receive, send)


class BodyLimits:
    """Reads the body within its limits and hands it on in one piece; an error otherwise."""

    def __init__(self, app: ASGIApp, limits: Limits, most_requests: int | None = None) -> None:
        """`most_requests` is how many the application generates for at once, for the gate to know."""
        self._app, self._bodies, self._most_requests = app, Bodies(limits), most_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        incoming = Incoming(receive)
        try:
            self._bodies.check(scope)
        except ApiError as error:
            if is_held_back(scope):  # the gate lets it pass
                await refuse(send, error)
            else:
                await refuse_and_linger(incoming, send, error)
            return
        await ask_for_body(scope, send, self._most_requests)
        try:
            body = await self._bodies.read(scope, incoming)
        except ApiError as error:
            await refuse_and_linger(incoming, send, error)
            return
        if body is not None:
            try:
                await self._app(scope, _replay(body, receive), send)
            finally:  # until then it is kept, as bytes or as what was read from them
                self._bodies.let_go(body)


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
    content_type = (header(scope, b"content-type") or b"").decode("latin-1")
    essence, _, parameters = content_type.partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if essence.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise ApiError(415, "Send the body with the header Content-Type: application/json.")


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body first, whole, and then what comes after it (that the client left)."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed
