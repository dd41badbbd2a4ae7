"""POST /v1/responses: items in, items out. Nothing is kept behind an answer.

https://platform.openai.com/docs/api-reference/responses-streaming
"""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from copy import deepcopy
from itertools import chain
from typing import Any

from starlette.responses import Response

from endpoint.answers.choices import Choice, grow, make_choices, reached_with, usage
from endpoint.http.events import Part, dumps, stream_response
from endpoint.service.service import Call, PreparedRequest, Service
from pipeline.requests.texts import ResponseAsked
from pipeline.text.answer_parts import Arguments, CallBegins, Content, Event, Reasoning
from pipeline.text.chat import AnswerReader

Json = dict[str, Any]


class OutputItems:
    """A response's items: thoughts, messages and calls, in the order in which the model writes them."""

    def __init__(self, response_id: str, new_call_id: Callable[[int], str]) -> None:
        """Derive the items' ids from that of the response; `new_call_id` returns that of the nth call."""
        self.items: list[Json] = []
        self.thought = ""
        self._response_id, self._new_call_id = response_id, new_call_id
        self._num_calls = 0

    def add(self, events: Iterable[Event]) -> Iterator[Json]:
        """Add what was read next; yield events without their number."""
        for event in events:
            match event:
                case Reasoning(text):
                    self.thought += text
                    yield from self._grow("reasoning", text)
                case Content(text):
                    yield from self._grow("message", text)
                case CallBegins(name):
                    yield from self.end()
                    call_id, self._num_calls = self._new_call_id(self._num_calls), self._num_calls + 1
                    yield from self._begin("function_call", {"call_id": call_id, "name": name, "arguments": ""})
                case Arguments(text):
                    self._item["arguments"] += text
                    yield self._event("response.function_call_arguments.delta", delta=text)

    def end(self, status: str = "completed") -> Iterator[Json]:
        """End the newest item, if it has not ended."""
        if not self.items or self._item["status"] != "in_progress":
            return
        item, kind = self._item, self._item["type"]
        item["status"] = status
        if kind == "function_call":
            whole = {"arguments": item["arguments"], "name": item["name"]}
            yield self._event("response.function_call_arguments.done", **whole)
        else:
            part, named = item["content"][0], "output_text" if kind == "message" else "reasoning_text"
            logprobs: Json = {"logprobs": []} if kind == "message" else {}
            yield self._event(f"response.{named}.done", content_index=0, text=part["text"], **logprobs)
            yield self._event("response.content_part.done", content_index=0, part=part)
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    @property
    def _item(self) -> Json:
        return self.items[-1]

    def _grow(self, kind: str, text: str) -> Iterator[Json]:
        if not self.items or self._item["type"] != kind or self._item["status"] != "in_progress":
            yield from self.end()
            own: Json = {"role": "assistant"} if kind == "message" else {"summary": []}
            yield from self._begin(kind, {**own, "content": []})
            part: Json = {"type": "reasoning_text", "text": ""}
            if kind == "message":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield self._event("response.content_part.added", content_index=0, part=dict(part))
            self._item["content"].append(part)
        self._item["content"][0]["text"] += text
        named = "output_text" if kind == "message" else "reasoning_text"
        logprobs: Json = {"logprobs": []} if kind == "message" else {}
        yield self._event(f"response.{named}.delta", content_index=0, delta=text, **logprobs)

    def _begin(self, kind: str, fields: Json) -> Iterator[Json]:
        prefix = {"reasoning": "rs", "message": "msg", "function_call": "fc"}[kind]
        index = len(self.items)
        item_id = f"{prefix}_{self._response_id.removeprefix('resp_')}_{index}"
        self.items.append({"id": item_id, "type": kind, "status": "in_progress", **fields})
        added = {**self._item, **({"content": []} if "content" in fields else {})}
        yield {"type": "response.output_item.added", "output_index": index, "item": added}

    def _event(self, kind: str, **fields: Any) -> Json:
        return {"type": kind, "item_id": self._item["id"], "output_index": len(self.items) - 1, **fields}


async def create_response(service: Service, request: ResponseAsked, call: Call) -> Response:
    """Return the answer. Raises ApiError."""
    prepared = await service.prepare(request, call)
    writer = _Writer(service, request, prepared)
    if request.stream:
        names = {"has_names": True, "has_begun": bool(prepared.call.origin.reached)}
        return await stream_response(writer.parts(), prepared.generation.request_id, **names)
    async with aclosing(writer.parts()) as parts:  # type: ignore[type-var]
        async for part in parts:
            last = part
    return Response(dumps(last.events[-1]["response"]), media_type="application/json")


class _Writer:
    """The answer to one request."""

    def __init__(self, service: Service, request: ResponseAsked, prepared: PreparedRequest) -> None:
        self._service, self._request, self._prepared = service, request, prepared
        self._items = OutputItems(prepared.generation.request_id, lambda index: prepared.new_call_id(0, index))

    async def parts(self) -> AsyncIterator[Part]:
        """Yield the events of the stream; the last one has the whole response."""
        (choice,) = choices = make_choices(self._service, self._request, self._prepared, by_token=False)
        reader = AnswerReader(self._prepared.form)

        def numbered(events: Iterable[Json]) -> list[Json]:
            first = choice.reached.num_events
            found = [{**deepcopy(event), "sequence_number": number} for number, event in enumerate(events, first)]
            choice.reached = choice.reached._replace(num_events=first + len(found))
            return found

        growths = grow(self._service, self._prepared, choices, needs_whole=True)  # the last event has all items again
        async with aclosing(growths) as growing:  # type: ignore[type-var]
            async for growth in growing:
                if growth.is_known:
                    for _ in self._items.add(growth.read_by(reader)):
                        pass
                    continue
                begun: list[Json] = []
                if not choice.reached.num_events:  # so that what fails before the first token has a status of its own
                    kinds = ("response.created", "response.in_progress")
                    begun = [{"type": kind, "response": self._response("in_progress")} for kind in kinds]
                if events := numbered(chain(begun, self._items.add(growth.read_by(reader)))):
                    yield Part(events, reached_with(self._service, growth))
        status = "incomplete" if choice.finish_reason == "length" else "completed"
        end = numbered(self._items.end(status))
        end += numbered([{"type": f"response.{status}", "response": self._response(status, choice)}])
        yield Part(end, is_last=True)

    def _response(self, status: str, choice: Choice | None = None) -> Json:
        request, settings = self._request, self._service.settings
        params = self._prepared.generation.params
        is_cut = status == "incomplete"
        return {
            "id": self._prepared.generation.request_id,
            "object": "response",
            "created_at": self._prepared.call.origin.created,
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
        num_thought = len(self._service.codec.encode(thought, is_chat=True)) if thought else 0
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {**counts["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": min(num_thought, counts["completion_tokens"])},
            "total_tokens": counts["total_tokens"],
        }
