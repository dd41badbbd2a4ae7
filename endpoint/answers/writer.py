"""Writer of an answer, whole or streamed. The two APIs differ only in the form of their choices."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from collections.abc import Sequence as Seq
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar

from starlette.responses import Response

from actors.engine.deltas import Delta
from decoding.sequence import TokenLogprobs
from endpoint.answers.choices import (
    Choice,
    Growth,
    grow,
    make_choices,
    reached_with,
    speculative_decoding,
    usage,
    without_output,
)
from endpoint.answers.logprobs import prompt_logprobs
from endpoint.http.events import Part, dumps, stream_response
from endpoint.service.service import PreparedRequest, Service
from pipeline.requests.asked import Asked


class Form(ABC):
    """The form of choices in one API."""

    whole_object: ClassVar[str]  # the type that a whole answer declares
    chunk_object: ClassVar[str]  # and a chunk of a stream
    has_prompts: ClassVar[bool] = False  # whether a choice is that of one of several prompts
    needs_offsets: bool = False  # of each token's text in the text of its choice

    @abstractmethod
    def content(self, choice: Choice) -> dict[str, Any]:
        """Return the field with the choice's text."""

    @abstractmethod
    def logprobs(self, choice: Choice) -> dict[str, Any] | None:
        """Return the log-probabilities of the choice's tokens; None if they were not asked for."""

    @abstractmethod
    def chunks(self, growth: Growth) -> list[dict[str, Any]]:
        """Return what a stream sends about a choice that has grown: possibly nothing, or several chunks."""

    @abstractmethod
    def empty_chunk(self, choice: Choice) -> dict[str, Any]:
        """Return a chunk that adds no text to a choice."""

    def finish_reason(self, choice: Choice) -> str | None:
        """Return why a choice has ended."""
        return choice.finish_reason

    def selected(self, choices: list[Choice]) -> list[Choice]:
        """Return the choices that a whole answer shows, in their order."""
        return choices


@dataclass(frozen=True)
class Writer:
    """The answer to one request. If it shows them, it has the `scores` of the prompts."""

    service: Service
    request: Asked
    prepared: PreparedRequest
    form: Form
    scores: Seq[Seq[TokenLogprobs]] | None = None
    known: Seq[Delta] = ()

    async def response(self) -> Response:
        """Generate the choices, unless all of them is `known`, and return the answer. Raises ApiError."""
        if self.request.stream:
            origin, request_id = self.prepared.call.origin, self.prepared.generation.request_id
            return await stream_response(self._parts(), request_id, has_begun=bool(origin.reached))
        return Response(dumps(await self._whole()), media_type="application/json")

    async def _whole(self) -> dict[str, Any]:
        form, generation = self.form, self.prepared.generation
        choices = make_choices(self.service, self.request, self.prepared, is_streamed=form.needs_offsets)
        async with aclosing(self._growing(choices)) as growing:  # type: ignore[type-var]
            async for _ in growing:
                pass
        scored = await asyncio.get_running_loop().run_in_executor(None, self._prompt_logprobs)
        shown = [
            {
                "index": index,
                **form.content(choice),
                "logprobs": form.logprobs(choice),
                "finish_reason": form.finish_reason(choice),
                "stop_reason": choice.stop_reason,
                "seed": choice.seed,
                **self._ids_of(choice, choice.token_ids, has_prompt=True),
                **(scored[choice.index // generation.params.n] if form.has_prompts else {}),
            }
            for index, choice in enumerate(form.selected(choices))
        ]
        of_prompt = {**self._prompt_ids(), **({} if form.has_prompts else scored[0])}
        return {**self._head(form.whole_object), **of_prompt, "choices": shown, **self._counts(choices)}

    async def _parts(self) -> AsyncIterator[Part]:
        form, request, generation = self.form, self.request, self.prepared.generation
        by_token, shows_rejected = form.needs_offsets or request.include_draft_spans, request.include_rejected_drafts
        shown = {"by_token": bool(by_token), "shows_rejected": bool(shows_rejected)}
        choices = make_choices(self.service, request, self.prepared, **shown)
        head = {**self._head(form.chunk_object), **({"usage": None} if request.includes_usage else {})}
        async with aclosing(self._growing(choices)) as growing:  # type: ignore[type-var]
            async for growth in growing:
                chunks = self._with_ids(growth, form.chunks(growth))
                if chunks and not growth.is_known:
                    counted = {"usage": usage(generation, choices)} if request.counts_continuously else {}
                    yield Part([{**head, **counted, **chunk} for chunk in chunks], reached_with(self.service, growth))
        end = [{**head, "choices": [], **self._counts(choices)}] if request.includes_usage else []
        yield Part(end, is_last=True)

    def _with_ids(self, growth: Growth, chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return a growth's chunks as they are sent: the first of them with the token ids, if these are asked for."""
        choice, token_ids = growth.choice, list(growth.delta.token_ids)
        if not self.request.return_token_ids:
            return [{"choices": [chunk]} for chunk in chunks]
        is_first = len(choice.token_ids) == len(token_ids)
        chunks = chunks or ([self.form.empty_chunk(choice)] if token_ids else [])
        sent: list[dict[str, Any]] = []
        for number, chunk in enumerate(chunks):
            ids = self._ids_of(choice, [] if number else token_ids, has_prompt=is_first and not number)
            sent.append({**(self._prompt_ids() if is_first and not number else {}), "choices": [{**chunk, **ids}]})
        return sent

    def _ids_of(self, choice: Choice, token_ids: list[int], has_prompt: bool) -> dict[str, Any]:
        """Return the fields of a choice with its token ids; a completion has its prompt's, too."""
        if not self.request.return_token_ids:
            return {}
        if not self.form.has_prompts:
            return {"token_ids": token_ids}
        generation = self.prepared.generation
        prompt = list(generation.prompts[choice.index // generation.params.n]) if has_prompt else None
        return {"prompt_token_ids": prompt, "token_ids": token_ids}

    def _prompt_ids(self) -> dict[str, Any]:
        """Return the field of a chat's answer with the ids of its prompt."""
        if not self.request.return_token_ids or self.form.has_prompts:
            return {}
        return {"prompt_token_ids": list(self.prepared.generation.prompts[0])}

    def _prompt_logprobs(self) -> list[dict[str, Any]]:
        """Return of each prompt the field with the log-probabilities of its tokens, if these are asked for."""
        num_top, prompts = self.request.prompt_logprobs, self.prepared.generation.prompts
        if num_top is None or self.scores is None:
            return [{} for _ in prompts]
        return [
            {"prompt_logprobs": prompt_logprobs(self.service.codec, prompt, scores, num_top)}
            for prompt, scores in zip(prompts, self.scores, strict=True)
        ]

    def _growing(self, choices: list[Choice]) -> AsyncIterator[Growth]:
        if self.request.generates:
            return grow(self.service, self.prepared, choices, self.known)
        return without_output(choices)

    def _head(self, object: str) -> dict[str, Any]:
        settings = self.service.settings
        return {
            "id": self.prepared.generation.request_id,
            "object": object,
            "created": self.prepared.call.origin.created,
            "model": settings.model,
            "system_fingerprint": settings.fingerprint,
        }

    def _counts(self, choices: list[Choice]) -> dict[str, Any]:
        most, detail = self.prepared.facts.num_speculative_tokens, self.service.settings.per_request_spec_decode_metrics
        return {
            "usage": usage(self.prepared.generation, choices),
            "metrics": {"speculative_decoding": speculative_decoding(choices, most, detail)},
        }
