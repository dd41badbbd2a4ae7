"""POST /v1/completions: prompts in, texts out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from actors.engine.deltas import Delta
from decoding.sequence import TokenLogprobs
from endpoint.answers.choices import Choice, Growth, draft_fields
from endpoint.answers.logprobs import completion_logprobs, is_next_token, known_deltas, score_prompts
from endpoint.answers.text import TextStream
from endpoint.answers.writer import Form, respond
from endpoint.service.service import Call, PreparedRequest, Prompt, Service
from pipeline.requests.texts import CompletionAsked
from pipeline.text.codec import TextCodec


async def complete(service: Service, request: CompletionAsked, call: Call) -> Response:
    """Return the answer. Raises ApiError."""
    prepared = await service.prepare(request, call)
    shows_scores = bool(request.echo) and request.logprobs is not None
    scores: Seq[Seq[TokenLogprobs]] | None = None
    known: list[Delta] = []
    if shows_scores or request.prompt_logprobs is not None:
        num_top = max((request.logprobs or 0) if shows_scores else 0, request.prompt_logprobs or 0)
        has_ranks = request.prompt_logprobs is not None
        has_next = is_next_token(prepared.generation)
        found = await score_prompts(service, prepared, num_top, has_ranks=has_ranks, has_next=has_next)
        scores, known = known_deltas(prepared.generation, found, prepared.facts)
    echoes = await _echoes(service, request, prepared, scores)
    return await respond(service, request, prepared, _CompletionForm(request, service.codec, echoes), scores, known)


@dataclass(frozen=True)
class _Echo:
    """A prompt as the answer shows it in front of its choices; empty unless the request asks for it."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    offsets: tuple[int, ...] = ()


async def _echoes(
    service: Service,
    request: CompletionAsked,
    prepared: PreparedRequest,
    scores: Seq[Seq[TokenLogprobs]] | None,
) -> list[_Echo]:
    """Return the echo of each prompt, whose tokens have these scores."""
    if not request.echo:
        return [_Echo() for _ in prepared.prompts]
    if request.logprobs is None or scores is None:
        return [_Echo(prompt.text) for prompt in prepared.prompts]

    def scored(prompt: Prompt, logprobs: Seq[TokenLogprobs]) -> _Echo:
        offsets = TextStream(service.codec).push(prompt.token_ids).offsets
        return _Echo(prompt.text, prompt.token_ids, (None, *logprobs), offsets)

    return [
        await asyncio.to_thread(scored, prompt, logprobs)
        for prompt, logprobs in zip(prepared.prompts, scores, strict=True)
    ]


class _CompletionForm(Form):
    """Choices as texts, each behind the echo of its prompt."""

    whole_object = chunk_object = "text_completion"
    has_prompts = True

    def __init__(self, request: CompletionAsked, codec: TextCodec, echoes: list[_Echo]) -> None:
        self._request, self._codec, self._echoes = request, codec, echoes
        self.needs_offsets = request.logprobs is not None

    def content(self, choice: Choice) -> dict[str, Any]:
        return {"text": self._echo(choice).text + choice.text}

    def logprobs(self, choice: Choice) -> dict[str, Any] | None:
        return self._logprobs(choice, 0, has_echo=True)

    def empty_chunk(self, choice: Choice) -> dict[str, Any]:
        return {"index": choice.index, "text": "", "logprobs": None, "finish_reason": None}

    def selected(self, choices: list[Choice]) -> list[Choice]:
        """Return the best of each prompt's samples: those whose tokens are the likeliest on average."""
        num_samples, num_choices = self._request.num_samples, self._request.num_choices
        if num_samples == num_choices:
            return choices
        best: list[Choice] = []
        for first in range(0, len(choices), num_samples):
            samples = choices[first : first + num_samples]
            best += sorted(samples, key=lambda choice: -choice.mean_logprob)[:num_choices]
        return best

    def chunks(self, growth: Growth) -> list[dict[str, Any]]:
        """Return one chunk, or none if there is nothing to show."""
        request, choice, piece = self._request, growth.choice, growth.piece
        is_silent = not piece.text and choice.ending is None
        if is_silent and request.logprobs is None and not request.include_draft_spans:
            return []
        is_first, choice.has_begun = not choice.has_begun, True
        echo = self._echo(choice).text if is_first else ""
        first_token = 0 if is_first else len(choice.token_ids) - len(growth.delta.token_ids)
        chunk: dict[str, Any] = {
            "index": choice.index,
            "text": echo + piece.text,
            "logprobs": self._logprobs(choice, first_token, has_echo=is_first),
            "finish_reason": choice.finish_reason,
        }
        if choice.ending is not None:
            chunk |= {"stop_reason": choice.stop_reason, "seed": choice.seed}
        if request.include_draft_spans:
            chunk |= draft_fields(growth, echo)
        return [chunk]

    def _echo(self, choice: Choice) -> _Echo:
        return self._echoes[choice.index // self._request.num_samples]

    def _logprobs(self, choice: Choice, first: int, *, has_echo: bool) -> dict[str, Any] | None:
        """Return the log-probabilities of a choice's tokens from `first` on, behind those of its echo."""
        if self._request.logprobs is None:
            return None
        echo = self._echo(choice)
        before = echo if has_echo else _Echo()
        offsets = [len(echo.text) + offset for offset in choice.offsets[first:]]
        return completion_logprobs(
            self._codec,
            [*before.token_ids, *choice.token_ids[first:]],
            [*before.logprobs, *choice.logprobs[first:]],
            [*before.offsets, *offsets],
            self._request.logprobs,
        )
