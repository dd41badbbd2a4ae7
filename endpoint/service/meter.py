"""Meter: what follows one request to generate, for metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import Literal, Protocol

from pipeline.counts import Counts

FinishReason = Literal["stop", "length", "cancelled", "rejected", "timeout", "error"]


class Meter(Protocol):
    """Of one request, which begins to wait when it is made."""

    def tokens(self, num_tokens: int, sample: int = 0) -> None:
        """So many tokens of a sample have come together."""
        ...

    def finished(self, reason: FinishReason, counts: Counts | None = None, num_drafts: int = 0) -> None:
        """It is over, with these counts in all, of so many drafts; a second call changes nothing."""
        ...


class NoMeter:
    """Where nobody measures."""

    def tokens(self, num_tokens: int, sample: int = 0) -> None:
        """Nothing."""

    def finished(self, reason: FinishReason, counts: Counts | None = None, num_drafts: int = 0) -> None:
        """Nothing."""


Rounds = Mapping[tuple[int, int], int]  # of a sample: (drafted, accepted) -> rounds


def counts_of(num_prompt_tokens: int, samples: Seq[tuple[int, Rounds]]) -> Counts:
    """Of samples, each with the number of its output tokens and its rounds, so far or in all."""
    rounds: Counter[tuple[int, int]] = Counter()
    for _, of_sample in samples:
        rounds.update(of_sample)
    most = max((accepted for _, accepted in rounds), default=0)
    return Counts(
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=sum(num_tokens for num_tokens, _ in samples),
        num_rounds=sum(rounds.values()),
        num_draft_tokens=sum(drafted * count for (drafted, _), count in rounds.items()),
        num_accepted_tokens=sum(accepted * count for (_, accepted), count in rounds.items()),
        accepted_per_position=tuple(
            sum(count for (_, accepted), count in rounds.items() if accepted > position) for position in range(most)
        ),
    )


def num_drafts_of(samples: Iterable[Rounds]) -> int:
    """Rounds in which something was drafted."""
    return sum(count for rounds in samples for (num_drafted, _), count in rounds.items() if num_drafted)
