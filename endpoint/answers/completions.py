"""POST /v1/completions: prompts in, texts out, whole or as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.responses import Response

from actors.engine.deltas import Delta
from actors.engine.requests import Generation, Scoring
from decoding.sequence import TokenLogprobs
from endpoint.answers.choices import Choice, Growth, grow, make_choices, speculative_decoding, usage
from endpoint.answers.logprobs import completion_logprobs
from endpoint.answers.text import TextStream
from endpoint.answers.whole_text import WholeText
from endpoint.http.events import dumps, stream_response
from endpoint.requests.completion import CompletionRequest
from endpoint.service.backend import ask_scores
from endpoint.service.service import Prompt, Service, too_long


@dataclass(frozen=True)
class _Echo:
    """A prompt as it stands before its choices; empty where it is not asked for."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Answer:
    """What is known of an answer before it is written."""

    service: Service
    request: CompletionRequest
    generation: Generation
    echoes: list[_Echo]  # of each prompt
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def head(self) -> dict[str, Any]:
        settings = self.service.settings
        return {
            "id": self.generation.request_id,
            "object": "text_completion",
            "created": self.created,
            "model": settings.model,
            "system_fingerprint": settings.fingerprint,
        }

    def echo_of(self, choice: Choice) -> _Echo:
        return self.echoes[choice.index // self.generation.params.n]

    def logprobs(self, choice: Choice, first: int, *, with_echo: bool) -> dict[str, Any] | None:
        """Of a choice's tokens from `first` on."""
        if self.request.logprobs is None:
            return None
        echo = self.echo_of(choice)
        before = echo if with_echo else _Echo()
        offsets = [len(echo.text) + offset for offset in choice.offsets[first:]]
        return completion_logprobs(
            self.service.codec,
            [*before.token_ids, *choice.stream.token_ids[first:]],
            [*before.logprobs, *choice.logprobs[first:]],
            [*before.offsets, *offsets],
        )


async def complete(service: Service, request: CompletionRequest, request_id: str) -> Response:
    """The answer. Raises ApiError."""
    service.check_model(request.model)
    params = request.params()
    await service.check_params(params)
    by_param = request.prompts
    service.check_num_choices(len(by_param), params)
    prompts = [await service.encode(param, prompt, has_text=bool(request.echo)) for param, prompt in by_param.items()]
    generation = service.generation(
        f"cmpl-{request_id}", prompts, params, request.seed, is_streamed=bool(request.stream)
    )
    if request.generates:
        await _check_room(service, dict(zip(by_param, prompts, strict=True)))
    answer = _Answer(service, request, generation, await _echoes(service, request, prompts, generation))
    if request.stream:
        return await stream_response(_chunks(answer), generation.request_id)
    return Response(dumps(await _whole(answer)), media_type="application/json")


async def _check_room(service: Service, prompts: Mapping[str, Prompt]) -> None:
    max_model_len = (await service.facts()).max_model_len
    for param, prompt in prompts.items():
        if len(prompt.token_ids) >= max_model_len:
            raise too_long(param, len(prompt.token_ids), max_model_len)


async def _echoes(
    service: Service, request: CompletionRequest, prompts: list[Prompt], generation: Generation
) -> list[_Echo]:
    if not request.echo:
        return [_Echo() for _ in prompts]
    if request.logprobs is None:
        return [_Echo(prompt.text) for prompt in prompts]
    scoring = Scoring(
        request_id=generation.request_id,
        prompts=generation.prompts,
        num_top=request.logprobs,
        deadline=generation.deadline,
    )
    scores = await ask_scores(service.backend, scoring)
    return await asyncio.get_running_loop().run_in_executor(None, _scored, service, prompts, scores)


def _scored(service: Service, prompts: list[Prompt], scores: list[list[TokenLogprobs]]) -> list[_Echo]:
    return [
        _Echo(
            prompt.text, prompt.token_ids, (None, *logprobs), TextStream(service.codec).push(prompt.token_ids).offsets
        )
        for prompt, logprobs in zip(prompts, scores, strict=True)
    ]


async def _whole(answer: _Answer) -> dict[str, Any]:
    service, request, generation = answer.service, answer.request, answer.generation
    choices = make_choices(service, generation, WholeText if request.logprobs is None else TextStream)
    if request.generates:
        async with aclosing(grow(service, generation, choices)) as growing:  # type: ignore[type-var]
            async for _ in growing:
                pass
    facts = await service.facts()
    body = {
        **answer.head,
        "choices": [
            {
                "index": index,
                "text": answer.echo_of(choice).text + choice.text,
                "logprobs": answer.logprobs(choice, 0, with_echo=True),
                "finish_reason": choice.finish_reason or "length",
                "stop_reason": None if choice.ending is None else choice.ending.stop_reason,
                "seed": choice.seed,
            }
            for index, choice in enumerate(_best(choices, request))
        ],
        "usage": usage(generation, choices),
    }
    return {**body, **_metrics(choices, facts.num_speculative_tokens)}


def _best(choices: list[Choice], request: CompletionRequest) -> list[Choice]:
    """Of each prompt's samples as many as are wanted: those whose tokens are the likeliest on average."""
    num_samples, num_choices = request.num_samples, request.num_choices
    if num_samples == num_choices:
        return choices
    best: list[Choice] = []
    for first in range(0, len(choices), num_samples):
        samples = choices[first : first + num_samples]
        best += sorted(samples, key=lambda choice: -choice.mean_logprob)[:num_choices]
    return best


def _metrics(choices: Seq[Choice], num_speculative_tokens: int) -> dict[str, Any]:
    return {"metrics": {"speculative_decoding": speculative_decoding(choices, num_speculative_tokens)}}


async def _chunks(answer: _Answer) -> AsyncIterator[dict[str, Any]]:
    service, request, generation = answer.service, answer.request, answer.generation
    by_token = request.logprobs is not None or bool(request.include_draft_spans)
    choices = make_choices(service, generation, partial(TextStream, by_token=by_token))
    head = {**answer.head, **({"usage": None} if request.includes_usage else {})}
    if request.generates:
        async with aclosing(grow(service, generation, choices)) as growing:  # type: ignore[type-var]
            async for growths in growing:
                for growth in growths:
                    if (chunk := _chunk(answer, growth)) is not None:
                        yield {**head, "choices": [chunk]}
    else:
        for choice in choices:
            echo = {"index": choice.index, "text": answer.echo_of(choice).text, "finish_reason": "length"}
            echo |= {"logprobs": answer.logprobs(choice, 0, with_echo=True), "stop_reason": None, "seed": choice.seed}
            yield {**head, "choices": [echo]}
    if request.includes_usage:
        metrics = _metrics(choices, (await service.facts()).num_speculative_tokens)
        yield {**head, "choices": [], "usage": usage(generation, choices), **metrics}


def _chunk(answer: _Answer, growth: Growth) -> dict[str, Any] | None:
    """The choice of a chunk; None where there is nothing to tell."""
    request, choice, piece = answer.request, growth.choice, growth.piece
    is_silent = not piece.text and choice.ending is None
    if is_silent and request.logprobs is None and not request.include_draft_spans:
        return None
    is_first, choice.has_begun = not choice.has_begun, True
    echo = answer.echo_of(choice).text if is_first else ""
    first_token = choice.num_tokens - len(growth.delta.token_ids)
    if is_first:
        first_token = 0
    chunk: dict[str, Any] = {
        "index": choice.index,
        "text": echo + piece.text,
        "logprobs": answer.logprobs(choice, first_token, with_echo=is_first),
        "finish_reason": choice.finish_reason,
    }
    if choice.ending is not None:
        chunk |= {"stop_reason": choice.ending.stop_reason, "seed": choice.seed}
    if request.include_draft_spans:
        spans = [(echo, False)] if echo else []
        chunk["draft_spans"] = draft_spans([*spans, *piece.spans])
        chunk["draft_counts"] = draft_counts(growth.delta)
    return chunk


def draft_spans(spans: Seq[tuple[str, bool]]) -> list[dict[str, Any]]:
    """The text of a chunk in parts, each with whether the draft had it."""
    return [{"text": text, "is_accepted": is_accepted} for text, is_accepted in spans]


def draft_counts(delta: Delta) -> dict[str, int]:
    """The counts of a chunk: they add up to those of the whole answer."""
    return {
        "num_tokens": len(delta.token_ids),
        "num_draft_tokens": delta.num_drafted,
        "num_accepted_tokens": delta.num_accepted,
    }
