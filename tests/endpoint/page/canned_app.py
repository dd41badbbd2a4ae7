"""The page before a server that streams what a test says, whatever it is."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse

from endpoint.edge.page import install_page
from endpoint.http.events import event


def chunk(text: str, *, is_accepted: bool = False, finish_reason: str | None = None) -> bytes:
    """Write an event of a completion's stream."""
    spans = [{"text": text, "is_accepted": is_accepted}]
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish_reason, "draft_spans": spans}]})


def canned_app() -> FastAPI:
    """Return an application that streams `app.state.pieces`, each in its own packet, and keeps the bodies it got."""
    app = FastAPI()
    app.state.pieces, app.state.asked = [], []
    app.state.warning = ""

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "canned", "warning": app.state.warning}]}

    @app.post("/v1/completions")
    @app.post("/v1/chat/completions")
    async def complete(body: dict[str, Any]) -> Any:
        app.state.asked.append(body)
        if isinstance(app.state.pieces, JSONResponse):
            return app.state.pieces

        async def pieces() -> AsyncIterator[bytes]:
            for piece in app.state.pieces:
                yield piece
                await asyncio.sleep(0.01)  # a packet of its own

        return StreamingResponse(pieces(), media_type="text/event-stream")

    install_page(app)
    return app
