"""Writer of an answer, whole or streamed. The two APIs differ only in the form of their choices."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar

from starlette.responses import Response

from endpoint.answers.choices import Choice, Growth, grow, make_choices, speculative_decoding, usage, without_output
from endpoint.answers.text import TextStream, WholeText
from endpoint.http.events import dumps, stream_response
from endpoint.requests.generation import GenerationRequest
from endpoint.service.service import PreparedRequest, Service


class Form(ABC):
    """The form of choices in one API."""

    whole_object: ClassVar[str]  # the type that a whole answer declares
    chunk_object: ClassVar[str]  # and a chunk of a stream
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

    def selected(self, choices: list[Choice]) -> list[Choice]:
        """Return the choices that a whole answer shows, in their order."""
        return choices


async def respond(service: Service, request: GenerationRequest, prepared: PreparedRequest, form: Form) -> Response:
    """Generate the choices and return the answer. Raises ApiError."""
    writer = _Writer(service, request, prepared, form)
    if request.stream:
        return await stream_response(writer.chunks(), prepared.generation.request_id)
    return Response(dumps(await writer.whole()), media_type="application/json")


class _Writer:
    """The answer to one request."""

    def __init__(self, service: Service, request: GenerationRequest, prepared: PreparedRequest, form: Form) -> None:
        self._service, self._request, self._prepared, self._form = service, request, prepared, form
        self._created = int(time.time())

    async def whole(self) -> dict[str, Any]:
        form, generation = self._form, self._prepared.generation
        choices = make_choices(self._service, generation, TextStream if form.needs_offsets else WholeText)
        async with aclosing(self._growing(choices)) as growing:  # type: ignore[type-var]
            async for _ in growing:
                pass
        shown = [
            {
                "index": index,
                **form.content(choice),
                "logprobs": form.logprobs(choice),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
                "seed": choice.seed,
            }
            for index, choice in enumerate(form.selected(choices))
        ]
        return {**self._head(form.whole_object), "choices": shown, **self._counts(choices)}

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        form, request, generation = self._form, self._request, self._prepared.generation
        by_token = form.needs_offsets or bool(request.include_draft_spans)
        choices = make_choices(self._service, generation, partial(TextStream, by_token=by_token))
        head = {**self._head(form.chunk_object), **({"usage": None} if request.includes_usage else {})}
        async with aclosing(self._growing(choices)) as growing:  # type: ignore[type-var]
            async for growth in growing:
                for chunk in form.chunks(growth):
                    yield {**head, "choices": [chunk]}
        if request.includes_usage:
            yield {**head, "choices": [], **self._counts(choices)}

    def _growing(self, choices: list[Choice]) -> AsyncIterator[Growth]:
        if self._request.generates:
            return grow(self._service, self._prepared.generation, choices)
        return without_output(choices)

    def _head(self, object: str) -> dict[str, Any]:
        settings = self._service.settings
        return {
            "id": self._prepared.generation.request_id,
            "object": object,
            "created": self._created,
            "model": settings.model,
            "system_fingerprint": settings.fingerprint,
        }

    def _counts(self, choices: list[Choice]) -> dict[str, Any]:
        num_speculative_tokens = self._prepared.facts.num_speculative_tokens
        return {
            "usage": usage(self._prepared.generation, choices),
            "metrics": {"speculative_decoding": speculative_decoding(choices, num_speculative_tokens)},
        }
