"""Meter: what follows one request to generate, for metrics."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Literal, Protocol

from actors.deltas import Ending
from pipeline.counts import Counts

FinishReason = Literal["stop", "length", "cancelled", "rejected", "timeout", "error"]


class Meter(Protocol):
    """Of one request, which begins to wait when it is made."""

    def tokens(self, num_tokens: int, sample: int = 0) -> None:
        """So many tokens of a sample have come, in one round."""
        ...

    def finished(self, reason: FinishReason, counts: Counts | None = None) -> None:
        """It is over, with these counts in all; a second call changes nothing."""
        ...


class NoMeter:
    """Where nobody measures."""

    def tokens(self, num_tokens: int, sample: int = 0) -> None:
        """Nothing."""

    def finished(self, reason: FinishReason, counts: Counts | None = None) -> None:
        """Nothing."""


def counts_of(num_prompt_tokens: int, samples: Seq[tuple[int, Ending]]) -> Counts:
    """Of samples, each with the number of its output tokens, once they have all ended."""
    rounds: dict[tuple[int, int], int] = {}
    for _, ending in samples:
        for key, count in ending.num_rounds_by_draft.items():
            rounds[key] = rounds.get(key, 0) + count
    most = max((accepted for _, accepted in rounds), default=0)
    return Counts(
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=sum(num_tokens for num_tokens, _ in samples),
        num_rounds=sum(ending.num_rounds for _, ending in samples),
        num_draft_tokens=sum(ending.num_draft_tokens for _, ending in samples),
        num_accepted_tokens=sum(ending.num_accepted_tokens for _, ending in samples),
        accepted_per_position=tuple(
            sum(count for (_, accepted), count in rounds.items() if accepted > position) for position in range(most)
        ),
    )
