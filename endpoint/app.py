"""The HTTP application: which path leads where. It knows no engine, only a Service."""

from __future__ import annotations

import asyncio
import uuid
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from actors.engine.deadline import Deadline
from endpoint.answers.chat import chat
from endpoint.answers.completions import complete
from endpoint.answers.models import list_models, one_model
from endpoint.answers.tokenize import detokenize, tokenize
from endpoint.http.errors import ApiError
from endpoint.requests.chat import ChatRequest
from endpoint.requests.completion import CompletionRequest
from endpoint.requests.tokens import DetokenizeRequest, TokenizeRequest
from endpoint.service.service import Service

_READY_TIMEOUT_S = 25.0


def create_app(service: Service, *, has_docs: bool = False) -> FastAPI:
    """The routes over this service; `has_docs` adds /docs and /openapi.json.

    What they raise becomes an answer at the edge (`endpoint/edge/install.py`).
    """
    app = FastAPI(
        title="Dray",
        description="OpenAI-compatible completions, token for token what the target model alone writes.",
        version=dray_version(),
        docs_url="/docs" if has_docs else None,
        redoc_url=None,
        openapi_url="/openapi.json" if has_docs else None,
    )

    def service_for(request: Request) -> Service:
        timeout_s = service.settings.request_timeout_s
        return service.until(Deadline.after(timeout_s, started=getattr(request.state, "arrived_at", None)))

    @app.post("/v1/completions")
    async def _completions(body: CompletionRequest, request: Request) -> Response:
        return await complete(service_for(request), body, request_id_of(request))

    @app.post("/v1/chat/completions")
    async def _chat(body: ChatRequest, request: Request) -> Response:
        return await chat(service_for(request), body, request_id_of(request))

    @app.get("/v1/models")
    async def _models(request: Request) -> dict[str, Any]:
        return list_models(service.settings, await service_for(request).facts())

    @app.get("/v1/models/{model:path}")
    async def _model(model: str, request: Request) -> dict[str, Any]:
        return one_model(service.settings, await service_for(request).facts(), model)

    @app.post("/tokenize")
    async def _tokenize(body: TokenizeRequest, request: Request) -> dict[str, Any]:
        return await tokenize(service_for(request), body)

    @app.post("/detokenize")
    async def _detokenize(body: DetokenizeRequest, request: Request) -> dict[str, Any]:
        return await detokenize(service_for(request), body)

    @app.get("/health")
    async def _health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/health/ready")
    async def _ready() -> Response:
        return await _readiness(service)

    @app.get("/version")
    async def _version() -> dict[str, str]:
        return {"version": dray_version()}

    return app


def request_id_of(request: Request) -> str:
    """What names the request in logs and answers: what the edge took from `x-request-id`, or a new one."""
    given = getattr(request.state, "request_id", None)
    return given if isinstance(given, str) else uuid.uuid4().hex


def dray_version() -> str:
    """Of the installed package; "unknown" where it runs from a folder."""
    try:
        return version("dray")
    except PackageNotFoundError:
        return "unknown"


async def _readiness(service: Service) -> Response:
    """200 if an engine wrote a token lately, or writes one now."""
    try:
        await asyncio.wait_for(service.backend.check_health(), _READY_TIMEOUT_S)
    except Exception:  # noqa: BLE001 - whatever it is, the answer is that it is not ready
        error = ApiError(503, "The model is not ready.", type="server_error", code="not_ready")
        return JSONResponse(error.envelope(), status_code=error.status, headers={"Retry-After": "5"})
    return JSONResponse({"status": "ready"})
