"""RequestMeter: one request to generate, from its arrival to its end, as the metrics see it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import Literal

from actors.metric_table import (
    BETWEEN_TOKENS_SECONDS,
    FIRST_TOKEN_SECONDS,
    QUEUE_SECONDS,
    REQUEST_SECONDS,
    REQUESTS_FINISHED,
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
)
from endpoint.service.metrics import ServingMetrics
from pipeline.counts import Counts

FinishReason = Literal["stop", "length", "cancelled", "rejected", "timeout", "error"]
Rounds = Mapping[tuple[int, int], int]  # of a sample: (drafted, accepted) -> number of rounds


class RequestMeter:
    """The times and counts of one request to generate: waiting, running, finished. Every request must be finished."""

    def __init__(self, metrics: ServingMetrics | None = None) -> None:
        """Begin to wait. Without `metrics` nothing is counted."""
        self._metrics = metrics
        self._started = time.monotonic()
        self._is_running = self._has_ended = False
        self._last_tokens: dict[int, float] = {}  # when the newest tokens of each sample came
        if metrics is not None:
            metrics.move(REQUESTS_WAITING, 1)

    def slot_found(self) -> None:
        """Begin to run, if the request has not: the first of its samples has a slot."""
        if self._metrics is None or self._is_running or self._has_ended:
            return
        self._is_running = True
        self._metrics.observe(QUEUE_SECONDS, time.monotonic() - self._started)
        self._metrics.move(REQUESTS_WAITING, -1)
        self._metrics.move(REQUESTS_RUNNING, 1)

    def tokens(self, num_tokens: int, sample: int = 0) -> None:
        """Count tokens of a sample that came together."""
        if self._metrics is None or not num_tokens or self._has_ended:
            return
        self.slot_found()
        now = time.monotonic()
        if not self._last_tokens:
            self._metrics.observe(FIRST_TOKEN_SECONDS, now - self._started)
        if sample in self._last_tokens:
            for _ in range(num_tokens):
                self._metrics.observe(BETWEEN_TOKENS_SECONDS, (now - self._last_tokens[sample]) / num_tokens)
        self._last_tokens[sample] = now

    def finished(self, reason: FinishReason, counts: Counts | None = None, num_drafts: int = 0) -> None:
        """End the request with its counts in all, and its number of drafts. A second call changes nothing."""
        if self._metrics is None or self._has_ended:
            return
        self._has_ended = True
        self._metrics.move(REQUESTS_RUNNING if self._is_running else REQUESTS_WAITING, -1)
        self._metrics.observe(REQUEST_SECONDS, time.monotonic() - self._started)
        self._metrics.add(REQUESTS_FINISHED, 1, finished_reason=reason)
        if counts is not None:
            self._metrics.add_counts(counts, num_drafts)


def counts_of(num_prompt_tokens: int, samples: Seq[tuple[int, Rounds]]) -> Counts:
    """Return the counts of samples, each given by the number of its output tokens and its rounds so far."""
    rounds: Counter[tuple[int, int]] = Counter()
    for _, of_sample in samples:
        rounds.update(of_sample)
    max_accepted = max((accepted for _, accepted in rounds), default=0)
    return Counts(
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=sum(num_tokens for num_tokens, _ in samples),
        num_rounds=sum(rounds.values()),
        num_draft_tokens=sum(drafted * count for (drafted, _), count in rounds.items()),
        num_accepted_tokens=sum(accepted * count for (_, accepted), count in rounds.items()),
        accepted_per_position=tuple(
            sum(count for (_, accepted), count in rounds.items() if accepted > position)
            for position in range(max_accepted)
        ),
    )


def num_drafts_of(samples: Iterable[Rounds]) -> int:
    """Return the number of rounds in which something was drafted."""
    return sum(count for rounds in samples for (num_drafted, _), count in rounds.items() if num_drafted)
