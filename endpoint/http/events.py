"""Server-sent events, as OpenAI clients read them (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.responses import StreamingResponse

from endpoint.http.errors import ApiError
from pipeline.logs import failure_event

DONE = b"data: [DONE]\n\n"  # the last event
_log = logging.getLogger(__name__)
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_FAILURE = ApiError(500, "The server failed over this request.", code="internal_error")


async def stream_response(
    chunks: AsyncIterator[dict[str, Any]], request_id: str, *, has_names: bool = False
) -> StreamingResponse:
    """Return a response that sends the chunks as events; wait for the first of them.

    If the events have names, each is named by the type of its chunk, and the last chunk is the end. What fails before
    the first chunk is raised, and so is answered with a status of its own.
    """
    first = await anext(chunks)
    return StreamingResponse(
        _events(first, chunks, request_id, has_names), media_type="text/event-stream", headers=_HEADERS
    )


async def _events(
    first: dict[str, Any], rest: AsyncIterator[dict[str, Any]], request_id: str, has_names: bool
) -> AsyncIterator[bytes]:
    """Yield the chunks as events, and then an error, or what says that they are all."""

    def written(chunk: dict[str, Any]) -> bytes:
        return (
            b"event: " + str(chunk.get("type", "error")).encode() + b"\n" + event(chunk) if has_names else event(chunk)
        )

    async with aclosing(rest):  # type: ignore[type-var]
        yield written(first)
        try:
            async for chunk in rest:
                yield written(chunk)
        except ApiError as error:
            yield written(error.envelope())
            return
        except Exception as error:  # noqa: BLE001 - the status is out; the client gets an error without details
            _log.error(failure_event("stream failed", error, request_id=request_id))
            yield written(_FAILURE.envelope())
            return
        if not has_names:
            yield DONE


def event(data: dict[str, Any]) -> bytes:
    """Write one event."""
    return b"data: " + dumps(data) + b"\n\n"


def dumps(data: Any) -> bytes:
    """Write JSON in UTF-8, without spaces."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
