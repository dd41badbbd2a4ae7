"""A small application that does everything an endpoint may do wrong, for the edge to stand around."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

from endpoint.edge.headers import Keys
from endpoint.edge.install import EdgeSettings, install
from endpoint.http.bodies import Limits
from endpoint.http.errors import ApiError
from endpoint.requests import body_of
from endpoint.service.metrics import ServingMetrics
from pipeline.requests.body import TEXT, Body, asks, integer, list_of, one_of, options

KEY, OTHER_KEY = "sk-one-that-is-right", "sk-another-that-is-right"
SECRET = "the-secret-words-of-a-prompt"
LIMITS = Limits(max_body_bytes=20_000, max_header_bytes=4096, max_headers=20, max_json_depth=16, body_timeout_s=0.5)
BEARER = {"authorization": f"Bearer {KEY}"}


@dataclass(frozen=True, kw_only=True)
class Question(Body):
    """A request with a field of each kind."""

    messages: list[dict[str, str]] = asks(
        list_of(options("role", "content", role=one_of("user", "system"), content=TEXT), 9), "Said.", is_required=True
    )
    n: int | None = asks(integer(ge=1, le=8), "Choices.")


def toy_app(*, keys: Keys | None, limits: Limits = LIMITS, hosts: frozenset[str] | None = None) -> FastAPI:
    """Return the application with its edge."""
    app = FastAPI()

    @app.get("/health")
    @app.get("/health/ready")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models/{model:path}")
    async def model(model: str) -> dict[str, str]:
        return {"id": model}

    @app.post("/v1/ask")
    async def ask(request: Request) -> dict[str, int]:
        question = await body_of(Question, request)
        return {"num_messages": len(question.messages)}

    @app.post("/v1/fail")
    async def fail(request: Request) -> None:
        question = await body_of(Question, request)
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise RuntimeError(f"cannot do {question.messages[0]['content']}") from error

    @app.post("/v1/busy")
    async def busy() -> None:
        raise ApiError(429, "Too many requests wait.", headers={"retry-after": "1"})

    @app.post("/v1/teapot")
    async def teapot(request: Request) -> None:
        question = await body_of(Question, request)
        raise HTTPException(418, detail=question.messages[0]["content"])

    @app.post("/v1/break")
    async def break_off(request: Request) -> StreamingResponse:
        question = await body_of(Question, request)

        async def pieces() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"
            raise RuntimeError(question.messages[0]["content"])

        return StreamingResponse(pieces(), media_type="text/event-stream")

    install(app, EdgeSettings(keys=keys, limits=limits, hosts=hosts), ServingMetrics("toy"))
    return app
