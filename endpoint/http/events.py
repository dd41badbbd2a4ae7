"""Server-sent events, as OpenAI clients read them (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from endpoint.http.errors import ApiError
from endpoint.http.retelling import Telling
from pipeline.logs import failure_event

DONE = b"data: [DONE]\n\n"  # the last event
_ERROR = b'data: {"error":'
_LAST_NAMES = (b"event: response.completed\n", b"event: response.incomplete\n", b"event: error\n")
_log = logging.getLogger(__name__)
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_FAILURE = ApiError(500, "The server failed over this request.", code="internal_error")


async def stream_response(
    chunks: AsyncIterator[dict[str, Any]], request_id: str, telling: Telling, *, has_names: bool = False
) -> StreamingResponse:
    """Return a response that sends the chunks as events; wait for the first of them.

    If the events have names, each is named by the type of its chunk, and the last chunk is the end. What fails before
    the first chunk is raised, and so is answered with a status of its own. What the gate is told goes before the events
    that are made of it.
    """
    first = await anext(chunks)
    return _ToldResponse(
        _events(first, chunks, request_id, has_names), telling, media_type="text/event-stream", headers=_HEADERS
    )


class _ToldResponse(StreamingResponse):
    """A stream of which the gate is told what its events are made of."""

    def __init__(self, events: AsyncIterator[bytes], telling: Telling, **options: Any) -> None:
        super().__init__(events, **options)
        self._telling = telling

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_told(message: Message) -> None:
            if message["type"] == "http.response.body" and (told := self._telling.message()) is not None:
                await send(told)
            await send(message)

        await super().__call__(scope, receive, send_told)


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


def is_last_event(events: bytes, *, has_names: bool = False) -> bool:
    """Tell whether a part of a stream, which consists of whole events, has the event after which there is no other."""
    if not has_names:
        return events.endswith(DONE) or events.startswith(_ERROR)
    return events.startswith(_LAST_NAMES)


def event(data: dict[str, Any], *, has_name: bool = False) -> bytes:
    """Write one event, under the name of its type if it is to have one."""
    name = b"event: " + str(data.get("type", "error")).encode() + b"\n" if has_name else b""
    return name + b"data: " + dumps(data) + b"\n\n"


def dumps(data: Any) -> bytes:
    """Write JSON in UTF-8, without spaces."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
