"""The edge of the application: everything that a request meets around it, and how a failure becomes an answer."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import prometheus_client as prometheus
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.metric_table import HTTP_REQUESTS, REQUESTS_FINISHED
from endpoint.edge.headers import Keys, check_headers, check_host, check_key, request_id_of, with_request_id
from endpoint.edge.page import PATHS, install_page
from endpoint.http.bodies import (
    MAX_EXTRA_BYTES,
    MAX_UPLOADS,
    Bodies,
    Incoming,
    Limits,
    Upload,
    announces_more,
    ask_for_body,
    check_encoding,
    header,
    is_held_back,
    is_upload,
    num_refused_at_gate,
    refuse_and_drain,
    replay,
    upload_too_large,
)
from endpoint.http.errors import CLOSE, ApiError, refuse, server_busy, wrong
from endpoint.http.origin import owner_of
from endpoint.service.metrics import Family, ServingMetrics, page
from pipeline.errors import FieldError, shown_name
from pipeline.logs import failure_event
from pipeline.requests.strict_json import JsonError, parse_object

_MESSAGES = {
    400: "The request cannot be read.",
    404: "There is no such path here.",
    405: "This path does not take this method.",
}
_CODES = {404: "unknown_url", 405: "method_not_allowed"}
_CLIENT_LEFT = "499"  # as a status, in metrics alone; nginx's word for it
HEALTH_PATHS = ("/health", "/health/ready")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_log = logging.getLogger(__name__)


async def _answer(request: Request, error: Exception) -> JSONResponse:
    match error:
        case FieldError():
            error = wrong(error.where, error.reason, error.code)
        case RequestValidationError():
            first = error.errors()[0]  # of a query, as in ?limit=0; `body_of` reads bodies
            error = wrong(shown_name(str(first["loc"][-1])), f"{first['msg'][:1].lower()}{first['msg'][1:]}")
        case HTTPException(status_code=status):
            message = _MESSAGES.get(status, "The request cannot be answered.")
            error = ApiError(status, message, code=_CODES.get(status), headers=error.headers)
    assert isinstance(error, ApiError)
    return JSONResponse(error.envelope(), error.status, headers=error.headers)


class BrokenAnswerError(Exception):
    """An answer that failed after it had begun. The server closes the connection, so the client sees the failure."""


def check_json(scope: Scope, body: bytes, max_depth: int) -> None:
    """Raise ApiError for a body that is not declared as JSON (415), or is not one strict JSON object (400)."""
    content_type = (header(scope, b"content-type") or b"").decode("latin-1")
    essence, _, parameters = content_type.partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if essence.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise ApiError(415, "Send the body with the header Content-Type: application/json.")
    try:
        parse_object(body, "The body", max_depth)
    except JsonError as error:
        raise ApiError(400, str(error), param=error.name, code="invalid_json") from None


@dataclass(frozen=True, kw_only=True)
class EdgeSettings:
    """Keys, limits, and the pages to show. `keys` is None where the endpoint is deliberately open to everyone."""

    keys: Keys | None
    limits: Limits = field(default_factory=Limits)
    hosts: frozenset[str] | None = None  # names that a Host header may have; any unless given
    has_page: bool = False
    page_examples: tuple[str, ...] = ()  # prompts that the page offers; everyone may read them
    has_docs: bool = False  # /docs and /openapi.json, behind the key like the rest
    max_upload_bytes: int = 0  # of a file; 0 where there is no Batch API


def install(
    app: FastAPI,
    settings: EdgeSettings,
    metrics: ServingMetrics,
    max_requests: int | None = None,
    all_families: Callable[[], Awaitable[list[Family]]] | None = None,
) -> None:
    """Install the edge around `app`, once, after its routes. No path is answered without it; CORS is off.

    The application generates for at most `max_requests` requests at once, if that is bounded. `all_families` returns
    what all processes of the endpoint have counted, if there are others.
    """

    async def metrics_page() -> Response:
        families = metrics.families() if all_families is None else await all_families()
        return Response(page(families), media_type=prometheus.CONTENT_TYPE_PLAIN_0_0_4)

    if not settings.has_docs:
        docs = {app.docs_url, app.redoc_url, app.openapi_url, app.swagger_ui_oauth2_redirect_url}
        app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) not in docs]
    app.router.redirect_slashes = False  # a redirect would tell clients without a key which paths exist
    for kind in (ApiError, FieldError, RequestValidationError, HTTPException):  # `Edge` answers what else is raised
        app.add_exception_handler(kind, _answer)
    app.add_api_route("/metrics", metrics_page, methods=["GET"], include_in_schema=False)
    if settings.has_page:
        install_page(app, needs_key=settings.keys is not None, examples=settings.page_examples)
    app.add_middleware(Edge, settings=settings, metrics=metrics, max_requests=max_requests)


class Edge:
    """Middleware that names, checks and counts requests; only whole bodies of clients with a key get past it."""

    def __init__(
        self, app: ASGIApp, settings: EdgeSettings, metrics: ServingMetrics, max_requests: int | None = None
    ) -> None:
        """Tell the gate that the application generates for at most `max_requests` at once."""
        self._app, self._settings, self._metrics, self._max_requests = app, settings, metrics, max_requests
        self._bodies, self._uploads = Bodies(settings.limits), asyncio.Semaphore(MAX_UPLOADS)
        self._public_paths = (*HEALTH_PATHS, *(PATHS if settings.has_page else ()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer and count one request. Raises BrokenAnswerError if it fails after its answer has begun."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket: closed before it is accepted, which the client sees as a 403
            await send({"type": "websocket.close", "code": 1008})
            return
        for path, num_refused in num_refused_at_gate(scope).items():
            self._metrics.add(HTTP_REQUESTS, num_refused, route=path, method="POST", status="429")
            self._metrics.add(REQUESTS_FINISHED, num_refused, finished_reason="rejected")
        request_id, incoming = request_id_of(scope), Incoming(receive)
        scope.setdefault("state", {}).update(request_id=request_id, arrived_at=time.monotonic())
        send, status, is_over = with_request_id(send, request_id), "none", False  # until there is an answer

        async def watched_send(message: Message) -> None:
            nonlocal status, is_over
            if message["type"] == "http.response.start":
                status = str(message["status"])
            is_over = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await self._pass_on(scope, incoming, watched_send)
        except ApiError as error:
            if is_held_back(scope):  # the gate drains it
                await refuse(watched_send, error)
            else:
                await refuse_and_drain(incoming, watched_send, error)
        except Exception as error:  # noqa: BLE001 - its text may quote the request, so it must not go further up
            where = {"method": scope["method"], "route": getattr(scope.get("route"), "path", None)}
            _log.error(failure_event("request failed", error, request_id=request_id, **where))
            if status != "none":
                raise BrokenAnswerError(f"request {request_id} failed after its answer had begun") from None
            message = f"The server failed at this request. Its log says more under the request id {request_id}."
            await refuse(watched_send, ApiError(500, message))
        except asyncio.CancelledError:  # Serve's way to say that the client has left
            incoming.has_left = True
            raise
        finally:
            if incoming.has_left and not is_over:
                status = _CLIENT_LEFT
            route = getattr(scope.get("route"), "path", "other")  # every path that is no route
            method = scope["method"] if scope["method"] in _METHODS else "other"
            metrics: ServingMetrics = scope["state"].get("metrics", self._metrics)  # those of the model that it names
            metrics.add(HTTP_REQUESTS, 1, route=route, method=method, status=status)

    async def _pass_on(self, scope: Scope, incoming: Incoming, send: Send) -> None:
        """Check one request and pass it on with its whole body. Raises ApiError for the first thing that is wrong."""
        settings = self._settings
        check_headers(scope, settings.limits)
        if settings.hosts is not None and scope["path"].removeprefix(scope.get("root_path", "")) not in HEALTH_PATHS:
            check_host(scope, settings.hosts)
        if settings.keys is not None:
            scope["state"]["owner"] = owner_of(check_key(scope, settings.keys, self._public_paths))
        if is_upload(scope):
            await self._pass_upload_on(scope, incoming, send)
            return
        self._bodies.check(scope)
        await ask_for_body(scope, send, self._max_requests)
        body = await self._bodies.read(scope, incoming)
        if body is None:
            return
        try:
            if body and scope["method"] == "POST":
                check_json(scope, body, settings.limits.max_json_depth)
            await self._app(scope, replay(body, incoming.receive), send)
        finally:  # the application keeps it until then, as bytes or as what it has parsed
            self._bodies.release(body)

    async def _pass_upload_on(self, scope: Scope, incoming: Incoming, send: Send) -> None:
        """Pass on a request whose body the application takes as it comes."""
        settings = self._settings
        max_bytes = settings.max_upload_bytes + MAX_EXTRA_BYTES if settings.max_upload_bytes else 0
        check_encoding(scope)
        if max_bytes and announces_more(scope, max_bytes):
            raise upload_too_large(max_bytes)
        if self._uploads.locked():
            raise server_busy("it takes in too many files", CLOSE)
        async with self._uploads:
            await ask_for_body(scope, send, self._max_requests)
            upload = Upload(incoming, max_bytes, settings.limits.body_timeout_s, scope, send)
            await self._app(scope, upload.receive, send)
