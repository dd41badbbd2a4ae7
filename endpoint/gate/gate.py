"""The gate in front of Ray Serve's proxy: what must not reach Serve's own code, or be kept in its memory.

The proxy obeys two headers of the client's, buffers any body, answers `/-/routes` to everybody, and has words of its
own where it reaches no application, and all that before one, or without. It can be given middlewares only by name, in
an environment variable of its process, so the settings come that way too (`endpoint/deployment.py`, `start`).
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import Any

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from endpoint.edge.headers import ROUTING_HEADERS, STEERING_HEADERS, new_request_id, request_id_of, with_request_id
from endpoint.edge.limits import BodyLimits, HeaderLimits
from endpoint.gate.answer import GateAnswer
from endpoint.gate.places import Place, Places
from endpoint.http.bodies import Bodies, Incoming, Limits, refuse_and_linger
from endpoint.http.errors import ApiError, server_busy
from endpoint.http.held_bodies import BodyOnDemand, has_body
from endpoint.http.refusal import refuse

INGRESS_NAME = "DrayIngress"  # of our deployment that speaks HTTP, whatever its application is called
PROTOCOL = 2  # what the gate and the application behind it have agreed on; another number for another agreement
_CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
_MAX_BODY_BYTES, _BODY_SECONDS = "DRAY_MAX_BODY_BYTES", "DRAY_BODY_SECONDS"
_READY_SECONDS = "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"  # its 5 s are short where many processes start at once
_PATIENCE_S, _ASK_AGAIN_S = 30.0, 0.1  # while an update is rolled out, for a process that has engines
_HEALTH = "/-/healthz"  # what the controller and Kubernetes ask of a proxy


def environment(limits: Limits) -> dict[str, str]:
    """The environment variables that put the gate before the proxies of a Serve that is yet to start."""
    return {
        _CALLBACK: "endpoint.gate.gate:middlewares",
        _MAX_BODY_BYTES: str(limits.max_body_bytes),
        _BODY_SECONDS: str(limits.body_timeout_s),
        _READY_SECONDS: "60",
    }


def middlewares() -> list[Middleware]:
    """What Serve's proxy asks for when it starts."""
    standard = Limits()
    limits = Limits(
        max_body_bytes=int(os.environ.get(_MAX_BODY_BYTES, standard.max_body_bytes)),
        body_timeout_s=float(os.environ.get(_BODY_SECONDS, standard.body_timeout_s)),
    )
    return [Middleware(Gate, limits=limits, protocol=PROTOCOL)]


class Gate:
    """Takes steering headers away, gives the request an id, keeps large, slow and internal requests out.

    What the proxy itself has to say to a client is said as the API says it. Bodies for our application are let in when
    it asks for them, which is when it has seen the key; others' applications know nothing of that, and their errors
    come as they are. What is beyond all places of our application is refused here.
    """

    def __init__(self, app: ASGIApp, limits: Limits, protocol: int = PROTOCOL) -> None:
        """`protocol` is only looked at from outside (`endpoint/deployment.py`, `check_gate`)."""
        self._app, self._bodies, self._router, self._places = app, Bodies(limits), _router_behind(app), Places()
        self._limited, self._in_headers = HeaderLimits(BodyLimits(app, limits), limits), HeaderLimits(app, limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse one request."""
        if scope["type"] != "http":
            await self._app(_without_steering(scope), receive, send)
            return
        try:
            request_id = request_id_of(scope)
        except ApiError as error:
            await refuse(with_request_id(send, new_request_id()), error)
            return
        send = with_request_id(send, request_id)
        if scope["path"].startswith("/-/") and scope["path"] != _HEALTH:
            await refuse(send, ApiError(404, "There is no such path here.", code="unknown_url"))
            return
        scope = _without_steering(scope)
        scope["headers"] = [*scope["headers"], (b"x-request-id", request_id.encode())]
        if scope["path"] == _HEALTH:
            await self._limited(scope, receive, send)
            return
        prefix, handle = self._deployment_at(scope["path"])
        if handle is not None and handle.deployment_name != INGRESS_NAME:
            await self._limited(scope, receive, send)
            return
        if handle is None or not has_body(scope):
            answer = GateAnswer(send)
            await self._limited(scope, receive, answer.send)
            await answer.end()
            return
        place = self._places.place_for(scope, scope["path"].removeprefix(prefix.rstrip("/")))
        if place is None:
            await refuse_and_linger(Incoming(receive), send, server_busy("too many requests wait already"))
            return
        try:
            await self._with_body(place, scope, receive, place.until_answered(send))
        finally:
            place.leave()

    async def _with_body(self, place: Place, scope: Scope, receive: Receive, send: Send) -> None:
        let_in = partial(self._places.let_in, place)
        body, gives_up_at = BodyOnDemand(scope, receive, self._bodies, let_in, self._places.take_news()), None
        try:
            while True:
                answer = GateAnswer(send, body, partial(self._places.forget, place))
                await self._in_headers(body.scope, body.receive, answer.send)
                if not answer.asks_for_another:
                    break
                now = time.monotonic()
                gives_up_at = gives_up_at or now + _PATIENCE_S
                if now >= gives_up_at:
                    break
                body.hold_back_again()
                await asyncio.sleep(_ASK_AGAIN_S)
            await answer.end()
        finally:
            body.let_go()

    def _deployment_at(self, path: str) -> tuple[str, Any]:
        """The prefix and the handle of what answers there; no handle where nothing does, or nobody knows."""
        match = None if self._router is None else self._router.match_route(path)
        return ("", None) if match is None else (match[0], match[1])


def _router_behind(app: Any) -> Any:
    """What tells Serve's proxy (2.60) whose a path is; None where no such proxy stands behind."""
    while app is not None and not hasattr(app, "proxy_router"):
        app = getattr(app, "_app", None)
    return None if app is None else app.proxy_router


def _without_steering(scope: Scope) -> Scope:
    taken = STEERING_HEADERS | ROUTING_HEADERS | {b"x-request-id"}
    return {**scope, "headers": [header for header in scope["headers"] if header[0].lower() not in taken]}
