"""The HTTP application: its routes over the services of its models. It knows no engine."""

import asyncio
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from actors.engine.requests import EngineFacts
from endpoint.answers.responses import create_response
from endpoint.answers.texts import chat, complete
from endpoint.batches.routes import add_batch_routes
from endpoint.batches.service import BatchService
from endpoint.http.errors import ApiError
from endpoint.http.origin import Deadline, origin_of, owner_of_request
from endpoint.requests import DetokenizeBody, TokenizeBody, body_of, documented
from endpoint.service.backend import in_time
from endpoint.service.service import Call, Models, Service, ServiceSettings
from pipeline.requests.texts import ChatAsked, CompletionAsked, ResponseAsked

_READY_TIMEOUT_S = 25.0


def create_app(models: Models, *, batches: BatchService | None = None, has_docs: bool = False) -> FastAPI:
    """Return the application with the routes over these models; `has_docs` adds /docs and /openapi.json.

    The Batch API is over `batches`, and switched off without it.

    The edge names its requests and answers the exceptions that its routes raise (`endpoint/edge/install.py`).
    """
    app = FastAPI(
        title="Dray",
        description=_description(models.first.settings),
        version=dray_version(),
        docs_url="/docs" if has_docs else None,
        redoc_url=None,
        openapi_url="/openapi.json" if has_docs else None,
    )

    def deadline_of(request: Request) -> Deadline:
        started = request.state.arrived_at - origin_of(request.scope).used_s
        return Deadline.after(models.first.settings.request_timeout_s, started=started)

    def service_of(name: str | None, request: Request) -> Service:
        """Return the service that a request names, which the edge then counts it for. Raises ApiError (404)."""
        service = models.of(name)
        request.state.metrics = service.metrics
        return service

    def call_of(request: Request) -> Call:
        return Call(request.state.request_id, owner_of_request(request), deadline_of(request), origin_of(request.scope))

    @app.post("/v1/completions", openapi_extra=documented(CompletionAsked))
    async def _completions(request: Request) -> Response:
        body = await body_of(CompletionAsked, request)
        return await complete(service_of(body.model, request), body, call_of(request))

    @app.post("/v1/chat/completions", openapi_extra=documented(ChatAsked))
    async def _chat(request: Request) -> Response:
        body = await body_of(ChatAsked, request)
        return await chat(service_of(body.model, request), body, call_of(request))

    @app.post("/v1/responses", openapi_extra=documented(ResponseAsked))
    async def _responses(request: Request) -> Response:
        body = await body_of(ResponseAsked, request)
        return await create_response(service_of(body.model, request), body, call_of(request))

    @app.get("/v1/models")
    async def _models(request: Request) -> dict[str, Any]:
        async with in_time(deadline_of(request)):
            found = await models.facts()
        return {"object": "list", "data": [_described(service.settings, facts, name) for name, service, facts in found]}

    @app.get("/v1/models/{model:path}")
    async def _model(model: str, request: Request) -> dict[str, Any]:
        service = service_of(model, request)
        async with in_time(deadline_of(request)):
            return _described(service.settings, await service.backend.facts(), model)

    @app.post("/tokenize", openapi_extra=documented(TokenizeBody))
    async def _tokenize(request: Request) -> dict[str, Any]:
        body = await body_of(TokenizeBody, request)
        service = service_of(body.model, request)
        async with in_time(deadline_of(request)):
            token_ids = (await service.encode(*body.text)).token_ids
            facts = await service.backend.facts()
        return {"count": len(token_ids), "max_model_len": facts.max_model_len, "tokens": list(token_ids)}

    @app.post("/detokenize", openapi_extra=documented(DetokenizeBody))
    async def _detokenize(request: Request) -> dict[str, Any]:
        body = await body_of(DetokenizeBody, request)
        service = service_of(body.model, request)
        async with in_time(deadline_of(request)):
            return {"prompt": await service.decode("tokens", body.tokens)}

    @app.get("/health")
    async def _health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/health/ready")
    async def _ready() -> dict[str, str]:
        """Tell whether an engine of each model has written a token lately, or writes one now. Raises ApiError (503)."""
        try:
            await asyncio.wait_for(models.check_health(), _READY_TIMEOUT_S)
        except Exception:  # noqa: BLE001 - whatever it is, the model is not ready
            retry = {"Retry-After": "5"}
            raise ApiError(503, "The model is not ready.", code="not_ready", headers=retry) from None
        return {"status": "ready"}

    @app.get("/version")
    async def _version() -> dict[str, str]:
        return {"version": dray_version()}

    add_batch_routes(app, batches)
    return app


def _description(settings: ServiceSettings) -> str:
    what = "OpenAI-compatible completions"
    if settings.warning:
        return f"{what}: {settings.warning}."
    return f"{what}, token for token what the target model alone writes."


def _described(settings: ServiceSettings, facts: EngineFacts | None, name: str) -> dict[str, Any]:
    """Return a model that is served, under one of its names; `parent` is that of which it is an adapter.

    What only its engines know is null if none of them answers.
    """
    return {
        "id": name,
        "object": "model",
        "created": settings.created,
        "owned_by": "dray",
        "root": settings.model,
        "parent": settings.parent,
        "max_model_len": facts and facts.max_model_len,
        "num_speculative_tokens": facts and facts.num_speculative_tokens,
        "drafter": facts and facts.drafter,
        "controls_drafts": facts and facts.controls_drafts,
        "exact": settings.exact,
        "warning": settings.warning,
    }


def dray_version() -> str:
    """Return the version of the installed package; "unknown" if it is not installed."""
    try:
        return version("dray")
    except PackageNotFoundError:
        return "unknown"
