"""The gate in front of Ray Serve's proxy, which keeps away what Serve's own code would obey or keep in its memory.

Before any application sees a request, the proxy obeys two headers of the client, buffers a body of any size, shows
`/-/routes` to everyone, waits for headers without an end, and answers in its own words where it reaches no
application. It takes middlewares only by name, from an environment variable of its process, so the gate's settings come
that way too (`endpoint/deployment.py`, `start`).
"""

import asyncio
import os
import re
import time
from collections.abc import Collection
from math import inf
from typing import Any, ClassVar

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import HTTP_PROTOCOLS
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from endpoint.edge.headers import ROUTING_HEADERS, STEERING_HEADERS, check_headers, request_id_of, with_request_id
from endpoint.gate.answer import GateAnswer, HeldBody
from endpoint.gate.capacity import GENERATING, NAMED_EVENTS, Capacity
from endpoint.http.bodies import Bodies, Incoming, Limits, has_body, refuse_and_drain, replay
from endpoint.http.errors import ApiError, server_busy

INGRESS_NAME = "DrayIngress"  # of our deployment that speaks HTTP, whatever its application is called
PROTOCOL = 7  # version of what gate and application tell each other
_CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
_OF_LIMITS = {name: f"DRAY_{name.upper()}" for name in ("max_body_bytes", "body_timeout_s", "header_timeout_s")}
_READY_SECONDS = "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"  # its 5 s are too short when many processes start at once
_PERIOD_SECONDS = "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S"  # a dead proxy is replaced after three of its 10 s
# A call whose answer was lost with its connection fails after a minute and a half, not after Ray's seven minutes: the
# controller waits for the answer of each replica that it starts, and replaces it only then. Ray's servers end the
# connection of a process that asks for a sign of life more than once a minute.
_KEEPALIVE = {"RAY_grpc_client_keepalive_time_ms": "70000", "RAY_grpc_client_keepalive_timeout_ms": "20000"}
_PATIENCE_S, _ASK_AGAIN_S = 30.0, 0.1  # to find an ingress that has engines while an update is rolled out
_MAX_LOST = 2  # ingresses that a request may have been given to when they were lost: it may be what ends them
# May be asked for again, though an ingress has begun it: it changes nothing, or nothing the second time.
_REPEATABLE = GENERATING | {"/tokenize", "/detokenize", "/v1/batches"}
_CANCELLATION = re.compile(r"/v1/batches/[^/]+/cancel")
_HEALTH = "/-/healthz"  # the path that the controller and Kubernetes ask
_Connection: Any = AutoHTTPProtocol


def environment(limits: Limits) -> dict[str, str]:
    """Return the environment variables that put the gate in front of the proxies of a Serve that is yet to start."""
    return {
        _CALLBACK: "endpoint.gate.gate:middlewares",
        **{variable: str(getattr(limits, name)) for name, variable in _OF_LIMITS.items()},
        _READY_SECONDS: "60",
        _PERIOD_SECONDS: "0.5",
        **_KEEPALIVE,
    }


def middlewares() -> list[Middleware]:
    """Return the gate, for Serve's proxy, which calls this when it starts, before its web server."""
    given = {name: os.environ[variable] for name, variable in _OF_LIMITS.items() if variable in os.environ}
    limits = Limits(**{name: type(getattr(Limits, name))(value) for name, value in given.items()})
    limit_header_time(limits.header_timeout_s)
    return [Middleware(Gate, limits=limits, protocol=PROTOCOL)]


class Gate:
    """Middleware that removes steering headers, names the request, and keeps large, slow and internal requests out.

    The proxy's own errors are rewritten in the form of the API. Bodies for our application are let in when it asks for
    them, after it has seen the key, and requests beyond its capacity are refused here. A request whose ingress is lost
    is given to another one if nothing of its answer was sent, or if that one can go on with its stream. Other
    applications know nothing of this protocol: they get their bodies at once, and their errors are passed on unchanged.
    """

    def __init__(self, app: ASGIApp, limits: Limits, protocol: int = PROTOCOL) -> None:
        """Guard `app`. `protocol` is only read from outside (`endpoint/deployment.py`, `check_gate`)."""
        self._app, self._bodies, self._router, self._capacity = app, Bodies(limits), _router_behind(app), Capacity()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(_without(STEERING_HEADERS | ROUTING_HEADERS, scope), receive, send)
            return
        request_id, incoming = request_id_of(scope), Incoming(receive)
        send = with_request_id(send, request_id)
        try:
            scope = _without(STEERING_HEADERS | ROUTING_HEADERS, scope)
            check_headers(scope, self._bodies.limits)
            scope = _without({b"x-request-id"}, scope)
            scope["headers"].append((b"x-request-id", request_id.encode()))
            await self._pass_on(scope, incoming, send)
        except ApiError as error:
            await refuse_and_drain(incoming, send, error)

    async def _pass_on(self, scope: Scope, incoming: Incoming, send: Send) -> None:
        """Pass on a request whose headers are good. Raises ApiError for one that is to be refused."""
        path = scope["path"]
        if not path.startswith("/"):  # `*`, or the name of a host, which are for other servers
            raise ApiError(400, "The request's target must be a path.")
        if path.startswith("/-/") and path != _HEALTH:
            raise ApiError(404, "There is no such path here.", code="unknown_url")
        match: Any = None if self._router is None else self._router.match_route(path)
        is_ours = match is not None and match[1].deployment_name == INGRESS_NAME
        inner_path = path.removeprefix(match[0].rstrip("/")) if is_ours else path
        if is_ours and path != _HEALTH and has_body(scope):
            claim = self._capacity.claim(scope, inner_path)
            if claim is None:
                raise server_busy("too many requests wait already")
            try:
                body = HeldBody(scope, incoming, self._bodies, claim)
                await self._with_held_body(body, inner_path, claim.releasing(send))
            finally:
                claim.release()
            return
        body_here = await self._bodies.read(scope, incoming)
        if body_here is None:
            return
        try:
            if path == _HEALTH or not (is_ours or match is None):
                await self._app(scope, replay(body_here, incoming.receive), send)
            else:
                await self._without_body(scope, inner_path, body_here, incoming, send)
        finally:
            self._bodies.release(body_here)

    async def _with_held_body(self, body: HeldBody, path: str, send: Send) -> None:
        """Ask our application, and another ingress if the one that was asked is lost or has engines no more.

        The latter is due to an update. A lost ingress may have done what it was asked for, so only what may be done
        twice is asked for again.
        """
        search = _Search()
        try:
            while True:
                answer = GateAnswer(send, body.incoming, body, has_names=path == NAMED_EVENTS)
                await self._app(body.scope, body.receive, answer.send)
                if answer.can_go_on:
                    goes_on = await search.goes_on(was_asked=True)
                elif answer.is_lost:
                    may_repeat = path in _REPEATABLE or not body.is_wanted
                    goes_on = may_repeat and body.can_rewind and await search.goes_on(was_asked=body.is_wanted)
                else:
                    goes_on = answer.needs_another_ingress and await search.goes_on()
                if not goes_on:
                    break
                body.rewind()
            await answer.end(may_repeat=search.num_lost < _MAX_LOST and not body.is_resuming)
        finally:
            body.release()

    async def _without_body(self, scope: Scope, path: str, body: bytes, incoming: Incoming, send: Send) -> None:
        """Ask our application, and another ingress for what may be repeated if the one that was asked is lost."""
        search, method = _Search(), scope["method"]
        may_repeat = method in ("GET", "HEAD") or (method == "POST" and _CANCELLATION.fullmatch(path) is not None)
        while True:
            answer = GateAnswer(send, incoming)
            await self._app(scope, replay(body, incoming.receive), answer.send)
            if not (answer.is_lost and may_repeat and await search.goes_on(was_asked=True)):
                break
        await answer.end()


class _Search:
    """The search for an ingress that answers one request."""

    def __init__(self) -> None:
        self._gives_up_at = inf
        self.num_lost = 0  # ingresses that were asked and lost

    async def goes_on(self, *, was_asked: bool = False) -> bool:
        """Tell whether another ingress may be asked, after a pause; the last one `was_asked`, and lost, or was not."""
        self._gives_up_at = min(self._gives_up_at, time.monotonic() + _PATIENCE_S)
        self.num_lost += was_asked
        if self.num_lost >= _MAX_LOST or time.monotonic() >= self._gives_up_at:
            return False
        await asyncio.sleep(_ASK_AGAIN_S)
        return True


def _router_behind(app: Any) -> Any:
    """Return the router by which Serve's proxy (2.60) finds the application of a path; None without such a proxy."""
    while app is not None and not hasattr(app, "proxy_router"):
        app = getattr(app, "_app", None)
    return None if app is None else app.proxy_router


def _without(names: Collection[bytes], scope: Scope) -> Scope:
    return {**scope, "headers": [header for header in scope["headers"] if header[0].lower() not in names]}


class TimedConnection(_Connection):  # type: ignore[misc]  # uvicorn picks its class at import
    """One connection of uvicorn's (0.54), whatever it reads HTTP with.

    uvicorn waits for headers without an end, so that a client that sends a byte now and then could hold as many
    connections as the process may open.
    """

    header_timeout_s: ClassVar[float] = 30.0
    _closing: asyncio.TimerHandle | None = None
    _is_upgraded = False

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the headers of the first request."""
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Take what the client sends, and wait on for headers if no request is under way."""
        super().data_received(data)
        if self._is_upgraded or (self.cycle is not None and not self.cycle.response_complete):
            self._stop_waiting()
        else:
            self._wait_for_headers()

    def handle_websocket_upgrade(self, *arguments: Any) -> None:
        """Leave the connection to the protocol for WebSockets."""
        self._is_upgraded = True
        super().handle_websocket_upgrade(*arguments)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the waiting with the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        """Close the connection in time, unless it is waited for already."""
        if self._closing is None and not self.transport.is_closing():
            self._closing = self.loop.call_later(self.header_timeout_s, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None


def limit_header_time(seconds: float) -> None:
    """Let the web servers that this process starts from now on close a connection whose headers take longer."""
    TimedConnection.header_timeout_s = seconds
    HTTP_PROTOCOLS["auto"] = f"{__name__}:{TimedConnection.__name__}"
