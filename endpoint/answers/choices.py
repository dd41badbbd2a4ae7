"""Choices: what the deltas of a generation add up to, and the counts that answers give about them."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from actors.engine.deltas import Delta, Ending
from actors.engine.requests import Generation
from decoding.sequence import TokenLogprobs
from endpoint.answers.text import Piece, Span, TextStream
from endpoint.http.errors import ApiError, generation_failed, refusal
from endpoint.service.backend import ask
from endpoint.service.metrics import FinishReason, RequestMeter
from endpoint.service.resumption import Reached, Resumption
from endpoint.service.served_model import SpecDecodeMetrics
from endpoint.service.service import PreparedRequest, Service
from pipeline.logs import Event
from pipeline.requests.asked import Asked
from pipeline.text.answer_parts import Answer
from pipeline.text.answer_parts import Event as AnswerEvent
from pipeline.text.chat import AnswerReader

_REASONS: Mapping[int, FinishReason] = {429: "rejected", 504: "timeout"}
_CAUSES = ("not finite", "memory ran out", "dropped")  # the words of a sample's error that a log may quote
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Choice:
    """One sample as it grows."""

    index: int
    seed: int
    stream: TextStream
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    ending: Ending | None = None
    has_begun: bool = False  # whether a chunk of it was sent
    reader: AnswerReader | None = None  # of a streamed answer with several parts
    answer: Answer = field(default_factory=Answer)  # what the reader has found
    rounds: Counter[tuple[int, int]] = field(default_factory=Counter)  # by their (drafted, accepted) tokens
    steps: list[tuple[int, int]] | None = field(default_factory=list)  # of each round; None: not known from the start
    reached: Reached = field(default_factory=Reached)  # the client has so much, or has it with what was added last

    def add(self, delta: Delta, *, is_known: bool = False) -> Growth:
        """Add a delta and return what it changes, for a client that has this part of the stream if it `is_known`.

        Raises RuntimeError if other text was shown with the tokens that the client has.
        """
        piece = self.stream.push(delta.token_ids, delta.num_accepted, delta.ending, delta.rejected)
        self.logprobs += delta.logprobs
        self.offsets += piece.offsets
        self.ending = delta.ending
        if delta.token_ids:
            self.rounds[delta.num_drafted, delta.num_accepted] += 1
            if self.steps is not None:
                self.steps.append((delta.num_drafted, delta.num_accepted))
        if not is_known:
            rounds = tuple(self.rounds.items())
            self.reached = self.reached.after(delta)._replace(num_characters=len(self.text), rounds=rounds)
        elif len(self.token_ids) == self.reached.num_tokens:
            self.rounds, self.steps = Counter(dict(self.reached.rounds)), None
            if (delta.ending is not None) == self.reached.has_ended and len(self.text) != self.reached.num_characters:
                raise RuntimeError("a process was lost, and another one does not show what it had shown")
        return Growth(self, delta, piece, is_known)

    def end_as_known(self) -> None:
        """End a sample that the client has, as far as the counts of the answer need it."""
        self.ending, self.rounds, self.steps = Ending("stop", None, None, 0), Counter(dict(self.reached.rounds)), None

    @property
    def text(self) -> str:
        """The text so far."""
        return self.stream.text

    @property
    def token_ids(self) -> list[int]:
        """The output tokens so far."""
        return self.stream.token_ids

    @property
    def finish_reason(self) -> str | None:
        """Why it ended; None while it goes on."""
        return None if self.ending is None else self.ending.finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or stop token id that ended it, if one did."""
        return None if self.ending is None else self.ending.stop_reason


@dataclass(frozen=True)
class Growth:
    """A delta that was added to a choice, and the text that it shows."""

    choice: Choice
    delta: Delta
    piece: Piece
    is_known: bool  # to the client, who has it from an ingress that was lost

    def read_by(self, reader: AnswerReader) -> list[AnswerEvent]:
        """Return what the reader is certain of with the text of this."""
        return [*reader.push(self.piece.text), *(reader.finish() if self.choice.ending is not None else ())]


def make_choices(service: Service, request: Asked, prepared: PreparedRequest, **options: bool) -> list[Choice]:
    """Make an empty choice for each sequence of a generation; the `options` are those of its TextStream."""
    generation, params = prepared.generation, prepared.generation.params
    codec = service.codec if prepared.form.is_plain else service.codec.of_answers
    if request.skip_special_tokens is False:
        codec = service.codec.of_all_tokens
    options["keeps_stop"] = bool(request.include_stop_str_in_output)
    choices = [
        Choice(number * params.n + sample, generation.seeds[number], TextStream(codec, params.stop, prompt, **options))
        for number, prompt in enumerate(generation.prompts)
        for sample in range(params.n)
    ]
    for index, reached in prepared.call.origin.reached.items():
        choices[index].reached = Reached(*reached)
    return choices


async def grow(
    service: Service,
    prepared: PreparedRequest,
    choices: list[Choice],
    known: Seq[Delta] = (),
    *,
    needs_whole: bool = False,
) -> AsyncIterator[Growth]:
    """Generate unless all is `known`, and yield how each step changes the choices. Raises ApiError.

    A sample that the client has may fail when it is written again, unless the answer `needs_whole` samples at its end.
    """
    generation, meter, resumption = prepared.generation, RequestMeter(service.metrics), Resumption()
    reason: FinishReason = "cancelled"
    try:
        async with aclosing(
            ask(service.backend, generation, prepared.call.deadline, known, prepared.form_field)  # type: ignore[type-var]
        ) as stream:
            async for deltas in stream:
                for index in {delta.index: None for delta in deltas}:  # several of one choice count as one arrival
                    meter.tokens(sum(len(delta.token_ids) for delta in deltas if delta.index == index), index)
                for delta in deltas:
                    choice = choices[delta.index]
                    failed = delta.ending if delta.ending and delta.ending.finish_reason == "error" else None
                    if failed is not None and (needs_whole or not choice.reached.has_ended):
                        raise _sample_failed(failed, prepared, delta.index)
                    had, new = resumption.split(delta, choice.reached)
                    if failed is not None:  # the client has the whole of it
                        choice.end_as_known()
                        continue
                    if had is not None:
                        yield choice.add(had, is_known=True)
                    if new is not None:
                        yield choice.add(new)
        if any(choice.ending is None for choice in choices):
            raise ApiError(500, "The model stopped early.", code="generation_failed")
        reason = "length" if any(choice.finish_reason == "length" for choice in choices) else "stop"
    except ApiError as error:
        reason = _REASONS.get(error.status, "error")
        raise
    except Exception:
        reason = "error"
        raise
    finally:
        # What was written for a client that left counts, too; a prompt counts only if something was written to it.
        begun = {choice.index // generation.params.n for choice in choices if choice.token_ids or choice.ending}
        meter.finished(
            reason,
            num_prompt_tokens=sum(len(generation.prompts[prompt]) for prompt in begun),
            num_output_tokens=sum(len(choice.token_ids) for choice in choices),
            rounds=sum((choice.rounds for choice in choices), Counter[tuple[int, int]]()),
            num_cached_tokens=_num_cached(generation, choices),
        )


def reached_with(service: Service, growth: Growth) -> dict[int, tuple[Any, ...]]:
    """Return how far the client has come with a growth, where another engine would write the same; else nothing."""
    if not service.backend.is_repeatable:
        return {}
    return {growth.choice.index: tuple(growth.choice.reached._replace(fingerprint=service.settings.fingerprint))}


async def without_output(choices: list[Choice]) -> AsyncIterator[Growth]:
    """Yield the end of choices that show only the echo of their prompt."""
    ending = Ending(finish_reason="length", stop_reason=None, error=None, num_cached_tokens=0)
    for choice in choices:
        yield choice.add(Delta(choice.index, (), ending=ending), is_known=choice.reached.has_ended)


def _sample_failed(ending: Ending, prepared: PreparedRequest, sample: int) -> ApiError:
    """Return the error for a sample that failed: that of the request if its parameters left no token to write."""
    request_id = prepared.generation.request_id
    if ending.error is not None and ending.error.startswith("sampling."):
        return refusal(ending.error, prepared.form_field)
    cause = next((words for words in _CAUSES if words in (ending.error or "")), "other")
    _log.error(Event("generation failed", request_id=request_id, sample=sample, cause=cause))
    return generation_failed()


def draft_fields(growth: Growth, echo: str = "") -> dict[str, Any]:
    """Return the fields of a chunk that say which part of its text was drafted, behind the `echo` of a prompt.

    The counts of all chunks add up to those of the whole answer.
    """
    delta, spans = growth.delta, [Span(echo, False)] if echo else []
    return {
        "draft_spans": [
            {"text": text, "is_accepted": is_drafted, **({"rejected": rejected} if rejected else {})}
            for text, is_drafted, rejected in [*spans, *growth.piece.spans]
        ],
        "draft_counts": {
            "num_tokens": len(delta.token_ids),
            "num_draft_tokens": delta.num_drafted,
            "num_accepted_tokens": delta.num_accepted,
        },
    }


def usage(generation: Generation, choices: Seq[Choice]) -> dict[str, Any]:
    """Return the token counts of an answer. A prompt counts once, however many samples it has."""
    num_prompt = sum(len(prompt) for prompt in generation.prompts)
    num_output = sum(choice.reached.num_tokens for choice in choices)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": _num_cached(generation, choices)},
    }


def _num_cached(generation: Generation, choices: Seq[Choice]) -> int:
    """Return how many tokens of the prompts were copied instead of computed, for the first sample of each prompt."""
    firsts = choices[:: generation.params.n]
    return sum(choice.ending.num_cached_tokens for choice in firsts if choice.ending is not None)


def speculative_decoding(
    choices: Seq[Choice], num_speculative_tokens: int, detail: SpecDecodeMetrics = "summary"
) -> dict[str, Any] | None:
    """Return what speculation did for a single sample, with vLLM's names.

    Return None for several samples, and where nothing was drafted. A step is a round in which something was drafted.
    Steps of a text that was begun by a process that is lost are counted, and not listed.
    """
    by_draft: defaultdict[int, Counter[int]] = defaultdict(Counter)  # drafted -> accepted -> steps
    for (drafted, accepted), count in choices[0].rounds.items():
        if drafted:
            by_draft[drafted][accepted] = count
    if len(choices) != 1 or not by_draft:
        return None
    by_accepted = sum(by_draft.values(), Counter[int]())
    num_steps = by_accepted.total()
    num_drafted = sum(drafted * counts.total() for drafted, counts in by_draft.items())
    num_accepted = sum(accepted * count for accepted, count in by_accepted.items())
    longest = max(num_speculative_tokens, *by_draft)
    metrics: dict[str, Any] = {
        "mean_acceptance_length": 1 + num_accepted / num_steps,
        "draft_acceptance_rate": num_accepted / num_drafted,
        "acceptance_histogram": [by_accepted[accepted] for accepted in range(longest + 1)],
        "acceptance_histogram_by_draft_length": {
            str(drafted): [counts[accepted] for accepted in range(drafted + 1)]
            for drafted, counts in sorted(by_draft.items())
        },
        "num_spec_steps": num_steps,
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_drafted,
        "num_spec_tokens": num_speculative_tokens,
    }
    if detail == "detailed" and choices[0].steps is not None:
        steps = [step for step in choices[0].steps if step[0]]
        metrics["per_step_drafted"], metrics["per_step_accepted"] = map(list, zip(*steps, strict=True))
    return metrics
