"""POST /v1/chat/completions: messages in, the assistant's next message out."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from endpoint.answers.choices import Choice, Growth, draft_fields
from endpoint.answers.logprobs import chat_logprobs, score_prompts
from endpoint.answers.writer import Form, respond
from endpoint.service.service import Call, PreparedRequest, Service
from pipeline.requests.texts import ChatAsked
from pipeline.text.answer_parts import Arguments, CallBegins, Content, Event, Reasoning
from pipeline.text.codec import TextCodec


async def chat(service: Service, request: ChatAsked, call: Call) -> Response:
    """Return the answer. Raises ApiError."""
    prepared = await service.prepare(request, call)
    num_top, scores = request.prompt_logprobs, None
    if num_top is not None:
        scores = await score_prompts(service, prepared, num_top, has_ranks=True)
    return await respond(service, request, prepared, _ChatForm(request, service.codec, prepared), scores)


class _ChatForm(Form):
    """Choices as messages, or as changes of messages."""

    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"

    def __init__(self, request: ChatAsked, codec: TextCodec, prepared: PreparedRequest) -> None:
        self._request, self._codec, self._prepared, self._form = request, codec, prepared, prepared.form

    def content(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if not self._form.is_plain:
            choice.answer = answer = self._form.read(choice.text)
            message["content"] = answer.content if answer.reasoning or answer.calls else answer.content or ""
            if self._form.tags is not None:
                message["reasoning"] = answer.reasoning
            if answer.calls:
                ids = range(len(answer.calls))
                calls = zip(ids, answer.calls, strict=True)
                message["tool_calls"] = [_call(self._id(choice, i), call.name, call.arguments) for i, call in calls]
        return {"message": message}

    def finish_reason(self, choice: Choice) -> str | None:
        """Return why a choice has ended: with calls of tools, or as its sample did."""
        return "tool_calls" if choice.answer.calls and choice.finish_reason == "stop" else choice.finish_reason

    def logprobs(self, choice: Choice) -> dict[str, Any] | None:
        if not self._request.logprobs:
            return None
        return chat_logprobs(self._codec, choice.token_ids, choice.logprobs)

    def chunks(self, growth: Growth) -> list[dict[str, Any]]:
        """Return first the role, then what was read, and at last the reason why the choice ended."""
        request, choice, chunks = self._request, growth.choice, []
        if not choice.has_begun:
            choice.has_begun = True
            chunks.append(_chunk(choice, {"role": "assistant", "content": "", "refusal": None}))
        changes = self._changes(growth)
        if not changes and growth.delta.token_ids and (request.logprobs or request.include_draft_spans):
            changes = [{"content": ""}]
        own = [_chunk(choice, change) for change in changes]
        if own and request.logprobs:
            own[0]["logprobs"] = chat_logprobs(self._codec, growth.delta.token_ids, growth.delta.logprobs)
        if own and request.include_draft_spans:
            own[0] |= draft_fields(growth)
        chunks += own
        if choice.ending is not None:
            end = {"finish_reason": self.finish_reason(choice), "stop_reason": choice.stop_reason, "seed": choice.seed}
            chunks.append({**_chunk(choice, {}), **end})
        return chunks

    def empty_chunk(self, choice: Choice) -> dict[str, Any]:
        return _chunk(choice, {"content": ""})

    def _changes(self, growth: Growth) -> list[dict[str, Any]]:
        """Return the changes of the message by the newest text."""
        choice, text = growth.choice, growth.piece.text
        if self._form.is_plain:
            return [{"content": text}] if text else []
        choice.reader = reader = choice.reader or self._form.reader()
        events = [*reader.push(text), *(reader.finish() if choice.ending is not None else ())]
        return [self._change(choice, event) for event in events]

    def _change(self, choice: Choice, event: Event) -> dict[str, Any]:
        choice.answer.add([event])
        index = len(choice.answer.calls) - 1
        match event:
            case Reasoning(text):
                return {"reasoning": text}
            case Content(text):
                return {"content": text}
            case CallBegins(name):
                return {"tool_calls": [{"index": index, **_call(self._id(choice, index), name, "")}]}
            case Arguments(text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

    def _id(self, choice: Choice, index: int) -> str:
        return self._prepared.new_call_id(choice.index, index)


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _chunk(choice: Choice, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
