"""A small application that does everything an endpoint may do wrong, for the edge to stand around."""

from collections.abc import AsyncIterator
from typing import Literal

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from endpoint.edge.auth import Keys
from endpoint.edge.install import EdgeSettings, install
from endpoint.http.errors import ApiError
from endpoint.http.limits import Limits
from endpoint.service.metrics import ServingMetrics

KEY, OTHER_KEY = "sk-one-that-is-right", "sk-another-that-is-right"
SECRET = "the-secret-words-of-a-prompt"
LIMITS = Limits(max_body_bytes=20_000, max_header_bytes=4096, max_headers=20, max_json_depth=16, body_timeout_s=0.5)
BEARER = {"authorization": f"Bearer {KEY}"}


class Message(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["user", "system"]
    content: str


class Question(BaseModel):
    """A request with a field of each kind."""

    model_config = ConfigDict(extra="forbid", strict=True)
    messages: list[Message] = Field(max_length=9)
    n: int = Field(1, ge=1, le=8)


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
    async def ask(question: Question) -> dict[str, int]:
        return {"num_messages": len(question.messages)}

    @app.post("/v1/fail")
    async def fail(question: Question) -> None:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise RuntimeError(f"cannot do {question.messages[0].content}") from error

    @app.post("/v1/busy")
    async def busy(question: Question) -> None:
        raise ApiError(429, "Too many requests wait.", headers={"retry-after": "1"})

    @app.post("/v1/teapot")
    async def teapot(question: Question) -> None:
        raise HTTPException(418, detail=question.messages[0].content)

    @app.post("/v1/break")
    async def break_off(question: Question) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"
            raise RuntimeError(question.messages[0].content)

        return StreamingResponse(pieces(), media_type="text/event-stream")

    install(app, EdgeSettings(keys=keys, limits=limits, hosts=hosts), ServingMetrics("toy"))
    return app
