"""The page `/metrics`, and the middleware that counts answers."""

from __future__ import annotations

import prometheus_client as prometheus
from fastapi import FastAPI
from fastapi.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.metric_table import HTTP_REQUESTS, REQUESTS_FINISHED
from endpoint.http.held_body import num_refused_at_gate
from endpoint.service.metrics import ServingMetrics

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def install_metrics(app: FastAPI, metrics: ServingMetrics) -> None:
    """Add `/metrics` to the application."""

    async def metrics_page() -> Response:
        return Response(metrics.page(), media_type=prometheus.CONTENT_TYPE_PLAIN_0_0_4)

    app.add_api_route("/metrics", metrics_page, methods=["GET"], include_in_schema=False)


class RequestCounts:
    """Middleware that counts answers by route and status, and the refusals that the gate reports.

    Every path that is no route counts as `other`.
    """

    def __init__(self, app: ASGIApp, metrics: ServingMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on and count one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        for path, num_refused in num_refused_at_gate(scope).items():
            self._metrics.add(HTTP_REQUESTS, num_refused, route=path, method="POST", status="429")
            self._metrics.add(REQUESTS_FINISHED, num_refused, finished_reason="rejected")
        status = "none"  # the client left before there was an answer

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.add(HTTP_REQUESTS, 1, route=route, method=method, status=status)
