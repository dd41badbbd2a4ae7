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
    async with aclosing(rest):  # type: ignore[type-var]
        yield event(first, has_name=has_names)
        try:
            async for chunk in rest:
                yield event(chunk, has_name=has_names)
        except ApiError as error:
            yield error_event(error, has_names=has_names)
            return
        except Exception as error:  # noqa: BLE001 - the status is out; the client gets an error without details
            _log.error(failure_event("stream failed", error, request_id=request_id))
            yield error_event(_FAILURE, has_names=has_names)
            return
        if not has_names:
            yield DONE


def error_event(error: ApiError, *, has_names: bool = False) -> bytes:
    """Write the event that ends a stream with an error."""
    return event(error.envelope(), has_name=has_names)


def event(data: dict[str, Any], *, has_name: bool = False) -> bytes:
    """Write one event, under the name of its type if it is to have one."""
    name = b"event: " + str(data.get("type", "error")).encode() + b"\n" if has_name else b""
    return name + b"data: " + dumps(data) + b"\n\n"


def dumps(data: Any) -> bytes:
    """Write JSON in UTF-8, without spaces."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
