"""The edge of the application: all middlewares and handlers that a request meets around it, installed in one place."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import FastAPI

from endpoint.edge.auth import Auth, Keys
from endpoint.edge.bodies import BodyLimits, JsonBodies
from endpoint.edge.failures import Failures, install_handlers
from endpoint.edge.headers import RequestIds
from endpoint.edge.metrics_page import RequestCounts, install_metrics
from endpoint.edge.page import PATHS as PAGE_PATHS
from endpoint.edge.page import install_page
from endpoint.http.limits import HeaderLimits, Limits
from endpoint.service.metrics import ServingMetrics

HEALTH_PATHS = ("/health", "/health/ready")


@dataclass(frozen=True, kw_only=True)
class EdgeSettings:
    """Keys, limits, and the pages to show. `keys` is None where the endpoint is deliberately open to everyone."""

    keys: Keys | None
    limits: Limits = field(default_factory=Limits)
    has_page: bool = False
    has_docs: bool = False  # /docs and /openapi.json, behind the key like the rest


def install(app: FastAPI, settings: EdgeSettings, metrics: ServingMetrics, max_requests: int | None = None) -> None:
    """Install the edge around `app`, once, after its routes. No path is answered without it; CORS is off.

    The application generates for at most `max_requests` requests at once, if that is bounded.

    A request meets, in this order: the request counts, its id and the steering headers, the catch-all for failures,
    header limits, the key, body limits, strict JSON, and then the application's own handlers.
    """
    if not settings.has_docs:
        _remove_docs(app)
    app.router.redirect_slashes = False  # a redirect would tell clients without a key which paths exist
    install_handlers(app)
    install_metrics(app, metrics)
    if settings.has_page:
        install_page(app)
    # The one added last is the first to see a request.
    app.add_middleware(JsonBodies, limits=settings.limits)
    app.add_middleware(BodyLimits, limits=settings.limits, max_requests=max_requests)
    if settings.keys is not None:
        public_paths = (*HEALTH_PATHS, *(PAGE_PATHS if settings.has_page else ()))
        app.add_middleware(Auth, keys=settings.keys, public_paths=public_paths)
    app.add_middleware(HeaderLimits, limits=settings.limits)
    app.add_middleware(Failures)
    app.add_middleware(RequestIds)
    app.add_middleware(RequestCounts, metrics=metrics)


def _remove_docs(app: FastAPI) -> None:
    paths = {app.docs_url, app.redoc_url, app.openapi_url, app.swagger_ui_oauth2_redirect_url}
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) not in paths]
