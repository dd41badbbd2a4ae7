"""OutputItems: the items of a response, and the events that tell how they grow.

https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pipeline.text.answer_parts import Arguments, CallBegins, Content, Event, Reasoning

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
