"""The gate in front of Ray Serve's proxy: what must not reach Serve's own code, or be kept in its memory.

The proxy obeys two headers of the client's, buffers any body, answers `/-/routes` to everybody, and has words of its
own where it reaches no application, and all that before one, or without. It can be given middlewares only by name, in
an environment variable of its process, so the settings come that way too (`endpoint/deployment.py`, `start`).
"""

from __future__ import annotations

import os

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endpoint.errors import ApiError, model_unavailable
from endpoint.headers import ROUTING_HEADERS, STEERING_HEADERS, new_request_id, request_id_of, with_request_id
from endpoint.limits import BodyLimits, HeaderLimits, Limits
from endpoint.refusal import refuse

_CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
_MAX_BODY_BYTES, _BODY_SECONDS = "DRAY_MAX_BODY_BYTES", "DRAY_BODY_SECONDS"
_READY_SECONDS = "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"  # its 5 s are short where many processes start at once
_HEALTH = "/-/healthz"  # what the controller and Kubernetes ask of a proxy


def environment(limits: Limits) -> dict[str, str]:
    """The environment variables that put the gate before the proxies of a Serve that is yet to start."""
    return {
        _CALLBACK: "endpoint.gate:middlewares",
        _MAX_BODY_BYTES: str(limits.max_body_bytes),
        _BODY_SECONDS: str(limits.body_seconds),
        _READY_SECONDS: "60",
    }


def middlewares() -> list[Middleware]:
    """What Serve's proxy asks for when it starts."""
    standard = Limits()
    limits = Limits(
        max_body_bytes=int(os.environ.get(_MAX_BODY_BYTES, standard.max_body_bytes)),
        body_seconds=float(os.environ.get(_BODY_SECONDS, standard.body_seconds)),
    )
    return [Middleware(Gate, limits=limits)]


class Gate:
    """Takes steering headers away, gives the request an id, keeps large, slow and internal requests out.

    What the proxy itself has to say to a client is said as the API says it.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limited = app, HeaderLimits(BodyLimits(app, limits), limits)

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
        answer = _Answer(send)
        await self._limited(scope, receive, answer.send)
        await answer.end()


class _Answer:
    """What comes from behind the gate: of the application as it is, of the proxy itself in the form of the API."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_begun = self._is_proxys_own = False

    async def send(self, message: Message) -> None:
        """Pass a message on, or not."""
        if message["type"] == "http.response.start":
            self._is_proxys_own = _is_proxys_own(message)
        if not self._is_proxys_own:
            self._has_begun = True
            await self._send(message)

    async def end(self) -> None:
        """The proxy is done. Where it died over the request it has said nothing at all."""
        if not self._has_begun:
            await refuse(self._send, model_unavailable())


def _is_proxys_own(start: Message) -> bool:
    """An error in plain text: no application can be reached (404, 503), or a process of it was lost."""
    status: int = start["status"]
    types = [bytes(value) for name, value in start["headers"] if bytes(name).lower() == b"content-type"]
    return status >= 400 and any(value.startswith(b"text/plain") for value in types)


def _without_steering(scope: Scope) -> Scope:
    taken = STEERING_HEADERS | ROUTING_HEADERS | {b"x-request-id"}
    return {**scope, "headers": [header for header in scope["headers"] if header[0].lower() not in taken]}
