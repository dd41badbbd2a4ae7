"""The page before a server that streams what a test says, whatever it is."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse

from endpoint.edge.page import install_page
from endpoint.http.events import DONE, event

EXAMPLES = ("Say <b>hello</b>.", "Count to three.")


def chunk(
    text: str, *, is_accepted: bool = False, finish_reason: str | None = None, token_ids: Sequence[int] = ()
) -> bytes:
    """Write an event of a completion's stream."""
    choice = {
        "index": 0,
        "text": text,
        "finish_reason": finish_reason,
        "draft_spans": [{"text": text, "is_accepted": is_accepted}],
        "token_ids": list(token_ids),
        "draft_counts": {"num_tokens": len(token_ids), "num_draft_tokens": 0, "num_accepted_tokens": 0},
    }
    return event({"choices": [choice]})


def ended(text: str, *token_ids: int) -> list[bytes]:
    """Write the stream of an answer that ends by itself."""
    return [chunk(text, finish_reason="stop", token_ids=token_ids), DONE]


def canned_app() -> FastAPI:
    """Return an application that streams `app.state.pieces`, each in its own packet, and keeps the bodies it got.

    A request without drafts gets `app.state.pieces_without`, if there are any.
    """
    app = FastAPI()
    reset(app)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, **app.state.described} for name in app.state.names]}

    @app.post("/v1/completions")
    @app.post("/v1/chat/completions")
    async def complete(body: dict[str, Any]) -> Any:
        app.state.asked.append(body)
        is_without = body.get("num_speculative_tokens") == 0 and app.state.pieces_without is not None
        chosen = app.state.pieces_without if is_without else app.state.pieces
        if isinstance(chosen, JSONResponse):
            return chosen

        async def pieces() -> AsyncIterator[bytes]:
            for piece in chosen:
                yield piece
                await asyncio.sleep(0.01)  # a packet of its own

        return StreamingResponse(pieces(), media_type="text/event-stream")

    install_page(app, needs_key=False, examples=EXAMPLES)
    return app


def reset(app: FastAPI) -> None:
    """Forget what was asked and what is to be sent."""
    app.state.asked, app.state.pieces, app.state.pieces_without = [], [], None
    app.state.names = ["canned"]
    app.state.described = {"warning": "", "exact": "proved", "controls_drafts": True}
