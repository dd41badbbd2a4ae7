"""POST /v1/chat/completions: messages in, the assistant's next message out."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from actors.engine.deadline import Deadline
from endpoint.answers.choices import Choice, Growth, draft_fields
from endpoint.answers.logprobs import chat_logprobs
from endpoint.answers.writer import Form, respond
from endpoint.requests.chat import ChatRequest
from endpoint.service.service import Service
from pipeline.text.codec import TextCodec


async def chat(service: Service, request: ChatRequest, request_id: str, deadline: Deadline) -> Response:
    """Return the answer. Raises ApiError."""
    prepared = await service.prepare(request, request_id, deadline)
    return await respond(service, request, prepared, _ChatForm(request, service.codec))


class _ChatForm(Form):
    """Choices as messages, or as changes of messages."""

    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"

    def __init__(self, request: ChatRequest, codec: TextCodec) -> None:
        self._request, self._codec = request, codec

    def content(self, choice: Choice) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": choice.text, "refusal": None}}

    def logprobs(self, choice: Choice) -> dict[str, Any] | None:
        if not self._request.logprobs:
            return None
        return chat_logprobs(self._codec, choice.token_ids, choice.logprobs)

    def chunks(self, growth: Growth) -> list[dict[str, Any]]:
        """Return first the role, then text, and at last the reason why the choice ended."""
        request, choice, piece, chunks = self._request, growth.choice, growth.piece, []
        if not choice.has_begun:
            choice.has_begun = True
            chunks.append(_chunk(choice, {"role": "assistant", "content": "", "refusal": None}))
        if piece.text or (growth.delta.token_ids and (request.logprobs or request.include_draft_spans)):
            chunk = _chunk(choice, {"content": piece.text})
            if request.logprobs:
                chunk["logprobs"] = chat_logprobs(self._codec, growth.delta.token_ids, growth.delta.logprobs)
            if request.include_draft_spans:
                chunk |= draft_fields(growth)
            chunks.append(chunk)
        if choice.ending is not None:
            end = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason, "seed": choice.seed}
            chunks.append({**_chunk(choice, {}), **end})
        return chunks


def _chunk(choice: Choice, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
