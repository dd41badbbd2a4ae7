"""POST /v1/responses: items in, items out. Nothing is kept behind an answer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from copy import deepcopy
from functools import partial
from typing import Any

from starlette.responses import Response

from endpoint.answers.choices import Choice, Growth, grow, make_choices, usage
from endpoint.answers.output_items import Json, OutputItems
from endpoint.answers.text import TextStream
from endpoint.answers.writer import codec_of
from endpoint.http.events import dumps, stream_response
from endpoint.service.service import Call, PreparedRequest, Service
from pipeline.requests.response import ResponseAsked
from pipeline.text.answer_parts import Event
from pipeline.text.answers import AnswerReader


async def create_response(service: Service, request: ResponseAsked, call: Call) -> Response:
    """Return the answer. Raises ApiError."""
    prepared = await service.prepare(request, call)
    writer = _Writer(service, request, prepared)
    if request.stream:
        return await stream_response(writer.events(), prepared.generation.request_id, prepared.telling, has_names=True)
    async with aclosing(writer.events()) as events:  # type: ignore[type-var]
        async for event in events:
            last = event
    return Response(dumps(last["response"]), media_type="application/json")


class _Writer:
    """The answer to one request."""

    def __init__(self, service: Service, request: ResponseAsked, prepared: PreparedRequest) -> None:
        self._service, self._request, self._prepared = service, request, prepared
        self._codec = codec_of(service, request, prepared)
        self._created = prepared.created
        self._items = OutputItems(prepared.generation.request_id, lambda index: prepared.new_call_id(0, index))

    async def events(self) -> AsyncIterator[Json]:
        """Yield the events of the stream; the last one has the whole response."""
        number = 0
        async with aclosing(self._unnumbered()) as events:  # type: ignore[type-var]
            async for event in events:
                yield {**deepcopy(event), "sequence_number": number}
                number += 1

    async def _unnumbered(self) -> AsyncIterator[Json]:
        new_stream = partial(TextStream, by_token=False, keeps_stop=bool(self._request.include_stop_str_in_output))
        (choice,) = choices = make_choices(self._codec, self._prepared.generation, new_stream)
        reader = self._prepared.form.reader()
        begun = False
        async with aclosing(grow(self._service, self._prepared, choices)) as growing:  # type: ignore[type-var]
            async for growth in growing:
                if not begun:  # so that what fails before the first token has a status of its own
                    begun = True
                    for kind in ("response.created", "response.in_progress"):
                        yield {"type": kind, "response": self._response("in_progress")}
                for event in self._items.add(_read(reader, growth)):
                    yield event
        is_whole = choice.finish_reason != "length"
        for event in self._items.end("completed" if is_whole else "incomplete"):
            yield event
        status = "completed" if is_whole else "incomplete"
        yield {"type": f"response.{status}", "response": self._response(status, choice)}

    def _response(self, status: str, choice: Choice | None = None) -> Json:
        request, settings = self._request, self._service.settings
        params = self._prepared.generation.params
        is_cut = status == "incomplete"
        return {
            "id": self._prepared.generation.request_id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "model": settings.model,
            "output": self._items.items,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": request.effort, "summary": None},
            "store": False,
            "background": False,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "text": {"format": request.format},
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools or [],
            "truncation": "disabled",
            "service_tier": "default",
            "metadata": request.metadata or {},
            "user": request.user,
            "seed": self._prepared.generation.seeds[0],
            "usage": None if choice is None else self._usage(choice),
        }

    def _usage(self, choice: Choice) -> Json:
        counts: dict[str, Any] = usage(self._prepared.generation, [choice])
        thought = self._items.thought
        num_thought = len(self._codec.encode(thought, is_chat=True)) if thought else 0
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {**counts["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": min(num_thought, counts["completion_tokens"])},
            "total_tokens": counts["total_tokens"],
        }


def _read(reader: AnswerReader, growth: Growth) -> list[Event]:
    return [*reader.push(growth.piece.text), *(reader.finish() if growth.choice.ending is not None else ())]
