"""POST /v1/chat/completions: messages in, the assistant's next one out, whole or as it comes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.responses import Response

from actors.engine.requests import Generation
from endpoint.answers.choices import Growth, grow, make_choices, speculative_decoding, usage
from endpoint.answers.completions import draft_counts, draft_spans
from endpoint.answers.logprobs import chat_logprobs
from endpoint.answers.text import TextStream
from endpoint.answers.whole_text import WholeText
from endpoint.http.events import dumps, stream_response
from endpoint.requests.chat import ChatRequest
from endpoint.service.service import Service, too_long


@dataclass(frozen=True)
class _Answer:
    """What is known of an answer before it is written."""

    service: Service
    request: ChatRequest
    generation: Generation
    created: int = field(default_factory=lambda: int(time.time()))

    def head(self, object: str) -> dict[str, Any]:
        settings = self.service.settings
        return {
            "id": self.generation.request_id,
            "object": object,
            "created": self.created,
            "model": settings.model,
            "system_fingerprint": settings.fingerprint,
        }


async def chat(service: Service, request: ChatRequest, request_id: str) -> Response:
    """The answer. Raises ApiError."""
    service.check_model(request.model)
    params = request.params()
    await service.check_params(params)
    prompt = await service.encode_chat(request.rows())
    max_model_len = (await service.facts()).max_model_len
    if len(prompt.token_ids) >= max_model_len:
        raise too_long("messages", len(prompt.token_ids), max_model_len)
    generation = service.generation(
        f"chatcmpl-{request_id}", [prompt], params, request.seed, is_streamed=bool(request.stream)
    )
    answer = _Answer(service, request, generation)
    if request.stream:
        return await stream_response(_chunks(answer), generation.request_id)
    return Response(dumps(await _whole(answer)), media_type="application/json")


async def _whole(answer: _Answer) -> dict[str, Any]:
    service, request, generation = answer.service, answer.request, answer.generation
    choices = make_choices(service, generation, WholeText)
    async with aclosing(grow(service, generation, choices)) as growing:  # type: ignore[type-var]
        async for _ in growing:
            pass
    facts = await service.facts()
    return {
        **answer.head("chat.completion"),
        "choices": [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": chat_logprobs(service.codec, choice.stream.token_ids, choice.logprobs)
                if request.logprobs
                else None,
                "finish_reason": choice.finish_reason,
                "stop_reason": None if choice.ending is None else choice.ending.stop_reason,
                "seed": choice.seed,
            }
            for choice in choices
        ],
        "usage": usage(generation, choices),
        "metrics": {"speculative_decoding": speculative_decoding(choices, facts.num_speculative_tokens)},
    }


async def _chunks(answer: _Answer) -> AsyncIterator[dict[str, Any]]:
    service, request, generation = answer.service, answer.request, answer.generation
    choices = make_choices(service, generation, partial(TextStream, by_token=bool(request.include_draft_spans)))
    head = {**answer.head("chat.completion.chunk"), **({"usage": None} if request.includes_usage else {})}
    async with aclosing(grow(service, generation, choices)) as growing:  # type: ignore[type-var]
        async for growths in growing:
            for growth in growths:
                for chunk in _chunks_of(answer, growth):
                    yield {**head, "choices": [chunk]}
    if request.includes_usage:
        num_speculative_tokens = (await service.facts()).num_speculative_tokens
        metrics = {"speculative_decoding": speculative_decoding(choices, num_speculative_tokens)}
        yield {**head, "choices": [], "usage": usage(generation, choices), "metrics": metrics}


def _chunks_of(answer: _Answer, growth: Growth) -> list[dict[str, Any]]:
    """First the role, then text, at last the reason why it ended."""
    request, choice, piece, chunks = answer.request, growth.choice, growth.piece, []
    if not choice.has_begun:
        choice.has_begun = True
        chunks.append(_chunk(choice.index, {"role": "assistant", "content": "", "refusal": None}))
    if piece.text or (growth.delta.token_ids and (request.logprobs or request.include_draft_spans)):
        chunk = _chunk(choice.index, {"content": piece.text})
        if request.logprobs:
            chunk["logprobs"] = chat_logprobs(answer.service.codec, growth.delta.token_ids, growth.delta.logprobs)
        if request.include_draft_spans:
            chunk["draft_spans"] = draft_spans(piece.spans)
            chunk["draft_counts"] = draft_counts(growth.delta)
        chunks.append(chunk)
    if choice.ending is not None:
        end = {"stop_reason": choice.ending.stop_reason, "seed": choice.seed}
        chunks.append({**_chunk(choice.index, {}), "finish_reason": choice.finish_reason, **end})
    return chunks


def _chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
