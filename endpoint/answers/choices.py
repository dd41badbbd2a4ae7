"""Choices: what the deltas of a generation add up to, and the numbers that answers give of it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from collections.abc import Sequence as Seq
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from actors.engine.deltas import Delta, Ending
from actors.engine.requests import Generation
from decoding.sequence import TokenLogprobs
from endpoint.answers.text import Piece, TextStream
from endpoint.answers.whole_text import WholeText
from endpoint.http.errors import ApiError, generation_failed
from endpoint.service.backend import ask
from endpoint.service.meter import FinishReason, Rounds, counts_of, num_drafts_of
from endpoint.service.service import Service
from pipeline.counts import Counts
from pipeline.logs import Event
from pipeline.text.codec import TextCodec

_REASONS: Mapping[int, FinishReason] = {429: "rejected", 504: "timeout"}
_CAUSES = ("not finite", "memory ran out", "dropped")  # what a log may say of a sample's error, whatever else it says
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Choice:
    """One sample as it grows."""

    index: int
    seed: int
    stream: TextStream | WholeText
    logprobs: list[TokenLogprobs]
    offsets: list[int]
    ending: Ending | None = None
    has_begun: bool = False  # whether a chunk of it is out
    rounds_so_far: Counter[tuple[int, int]] = field(default_factory=Counter)  # as its deltas tell them

    @property
    def text(self) -> str:
        """What it says so far."""
        return self.stream.text

    @property
    def num_tokens(self) -> int:
        """Of its output."""
        return len(self.stream.token_ids)

    @property
    def rounds(self) -> Rounds:
        """By what was drafted in them, and how much of that stood."""
        return self.rounds_so_far if self.ending is None else self.ending.num_rounds_by_draft

    @property
    def finish_reason(self) -> str | None:
        """Why it ended; None while it goes on."""
        return None if self.ending is None else self.ending.finish_reason

    @property
    def mean_logprob(self) -> float:
        """Of its tokens, where their log-probabilities are known."""
        return sum(entry.logprob for entry in self.logprobs) / max(1, len(self.logprobs))


@dataclass(frozen=True)
class Growth:
    """What a delta adds to a choice."""

    choice: Choice
    delta: Delta
    piece: Piece


def make_choices(
    service: Service,
    generation: Generation,
    new_stream: Callable[[TextCodec, tuple[str, ...]], TextStream | WholeText],
) -> list[Choice]:
    """One for each sequence, nothing written yet; `new_stream` makes what its text comes from."""
    params = generation.params
    return [
        Choice(
            prompt * params.n + sample,
            generation.seeds[prompt],
            new_stream(service.codec, params.stop),
            [],
            [],
        )
        for prompt in range(len(generation.prompts))
        for sample in range(params.n)
    ]


async def grow(service: Service, generation: Generation, choices: list[Choice]) -> AsyncIterator[list[Growth]]:
    """Let the choices be written; what each step adds to them. Raises ApiError."""
    meter = service.new_meter()
    reason: FinishReason = "cancelled"
    try:
        async with aclosing(ask(service.backend, generation)) as stream:  # type: ignore[type-var]
            async for deltas in stream:
                for index in {delta.index: None for delta in deltas}:  # several of one are told together
                    meter.tokens(sum(len(delta.token_ids) for delta in deltas if delta.index == index), index)
                for delta in deltas:  # one at a time: two of them may be of one choice, and its state is of the newest
                    yield [_grown(choices[delta.index], delta, generation.request_id)]
        if any(choice.ending is None for choice in choices):
            raise ApiError(500, "The model stopped early.", type="server_error", code="generation_failed")
        reason = "length" if any(choice.finish_reason == "length" for choice in choices) else "stop"
    except ApiError as error:
        reason = _REASONS.get(error.status, "error")
        raise
    except Exception:
        reason = "error"
        raise
    finally:
        meter.finished(reason, _counts_of(generation, choices), num_drafts_of(choice.rounds for choice in choices))


def _counts_of(generation: Generation, choices: list[Choice]) -> Counts:
    """What was written, also by samples that nobody waited for; of the prompts those that something was written to."""
    read = {choice.index // generation.params.n for choice in choices if choice.num_tokens or choice.ending is not None}
    num_prompt_tokens = sum(len(generation.prompts[index]) for index in read)
    return counts_of(num_prompt_tokens, [(choice.num_tokens, choice.rounds) for choice in choices])


def _grown(choice: Choice, delta: Delta, request_id: str) -> Growth:
    ending = delta.ending
    if ending is not None and ending.finish_reason == "error":
        cause = next((words for words in _CAUSES if words in (ending.error or "")), "other")
        _log.error(Event("generation failed", request_id=request_id, sample=choice.index, cause=cause))
        raise generation_failed()
    piece = choice.stream.push(delta.token_ids, delta.num_accepted, ending)
    choice.logprobs += delta.logprobs
    choice.offsets += piece.offsets
    choice.ending = ending
    choice.rounds_so_far[delta.num_drafted, delta.num_accepted] += 1
    return Growth(choice, delta, piece)


def usage(generation: Generation, choices: Seq[Choice]) -> dict[str, Any]:
    """The counts of an answer. A prompt counts once, whatever the number of its samples."""
    num_prompt = sum(len(prompt) for prompt in generation.prompts)
    num_output = sum(choice.num_tokens for choice in choices)
    firsts = [choice.ending for choice in choices if choice.index % generation.params.n == 0]
    num_cached = sum(ending.num_cached_tokens for ending in firsts if ending is not None)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


def speculative_decoding(choices: Seq[Choice], num_speculative_tokens: int) -> dict[str, Any] | None:
    """How the drafts of a single sample fared, with vLLM's names; None where there are several, or none was drafted.

    A step is a round in which something was drafted.
    """
    if len(choices) != 1 or choices[0].ending is None:
        return None
    rounds = {key: count for key, count in choices[0].ending.num_rounds_by_draft.items() if key[0] > 0}
    num_steps = sum(rounds.values())
    if not num_steps:
        return None
    num_drafted = sum(drafted * count for (drafted, _), count in rounds.items())
    num_accepted = sum(accepted * count for (_, accepted), count in rounds.items())
    by_accepted: Counter[int] = Counter()
    by_draft: dict[int, Counter[int]] = {}
    for (drafted, accepted), count in rounds.items():
        by_accepted[accepted] += count
        by_draft.setdefault(drafted, Counter())[accepted] += count
    most = max(num_speculative_tokens, *by_draft)
    return {
        "mean_acceptance_length": 1 + num_accepted / num_steps,
        "draft_acceptance_rate": num_accepted / num_drafted,
        "acceptance_histogram": [by_accepted[accepted] for accepted in range(most + 1)],
        "acceptance_histogram_by_draft_length": {
            str(drafted): [counts[accepted] for accepted in range(drafted + 1)]
            for drafted, counts in sorted(by_draft.items())
        },
        "num_spec_steps": num_steps,
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_drafted,
        "num_spec_tokens": num_speculative_tokens,
    }
