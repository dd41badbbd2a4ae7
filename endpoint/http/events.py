"""Server-sent events, as OpenAI clients read them (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Send

from endpoint.http.errors import ApiError
from endpoint.http.origin import REACHED
from pipeline.logs import failure_event

DONE = b"data: [DONE]\n\n"  # the last event
_ERROR = b'data: {"error":'
_LAST_NAMES = (b"event: response.completed\n", b"event: response.incomplete\n", b"event: error\n")
_log = logging.getLogger(__name__)
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
Reached = Mapping[int, tuple[Any, ...]]  # `Origin.reached`
_Body = tuple[bytes, Reached]
_FAILURE = ApiError(500, "The server failed over this request.", code="internal_error")


@dataclass(frozen=True)
class Part:
    """Events that are sent at once, and how far the samples that they are of have come with them."""

    events: list[dict[str, Any]]
    reached: Reached = field(default_factory=dict)
    is_last: bool = False

    def body(self, *, has_names: bool) -> bytes:
        """Return the events as they are written, and the end of a stream whose events have no names."""
        end = DONE if self.is_last and not has_names else b""
        return b"".join(event(each, has_name=has_names) for each in self.events) + end


async def stream_response(
    parts: AsyncIterator[Part], request_id: str, *, has_names: bool = False, has_begun: bool = False
) -> StreamingResponse:
    """Return a response that sends the parts' events; wait for the first of them unless the stream `has_begun` before.

    If the events have names, each is named by its type, and the last one is the end. What fails before the first part
    is raised, and so is answered with a status of its own.
    """
    first = None if has_begun else await anext(parts)
    return _Stream(_bodies(first, parts, request_id, has_names))


class _Stream(StreamingResponse):
    """A stream of bodies, with which the gate learns how far the samples have come."""

    def __init__(self, bodies: AsyncIterator[_Body]) -> None:
        super().__init__((), media_type="text/event-stream", headers=_HEADERS)
        self._bodies = bodies

    async def stream_response(self, send: Send) -> None:
        """Send the answer."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for body, reached in self._bodies:
            await send({"type": "http.response.body", "body": body, "more_body": True, REACHED: reached})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _bodies(
    first: Part | None, rest: AsyncIterator[Part], request_id: str, has_names: bool
) -> AsyncIterator[_Body]:
    """Yield the parts' events with what they reach, and an error if there is one."""
    async with aclosing(rest):  # type: ignore[type-var]
        if first is not None:
            yield first.body(has_names=has_names), first.reached
        try:
            async for part in rest:
                yield part.body(has_names=has_names), part.reached
        except ApiError as error:
            yield error_event(error, has_names=has_names), {}
        except Exception as error:  # noqa: BLE001 - the status is out; the client gets an error without details
            _log.error(failure_event("stream failed", error, request_id=request_id))
            yield error_event(_FAILURE, has_names=has_names), {}


def error_event(error: ApiError, *, has_names: bool = False) -> bytes:
    """Write the event that ends a stream with an error."""
    return event(error.envelope(), has_name=has_names)


def is_last_event(events: bytes, *, has_names: bool = False) -> bool:
    """Tell whether a part of a stream, which consists of whole events, has the event after which there is no other."""
    if not has_names:
        return events.endswith(DONE) or events.startswith(_ERROR)
    return any(b"\n\n" + name in b"\n\n" + events for name in _LAST_NAMES)  # JSON has no such lines


def event(data: dict[str, Any], *, has_name: bool = False) -> bytes:
    """Write one event, under the name of its type if it is to have one."""
    name = b"event: " + str(data.get("type", "error")).encode() + b"\n" if has_name else b""
    return name + b"data: " + dumps(data) + b"\n\n"


def dumps(data: Any) -> bytes:
    """Write JSON in UTF-8, without spaces."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
