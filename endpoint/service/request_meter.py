"""RequestMeter: one request to generate, from its arrival to its end, as the metrics see it."""

from __future__ import annotations

import time

from endpoint.service.meter import FinishReason
from endpoint.service.metrics import (
    BETWEEN_TOKENS_SECONDS,
    FINISHED,
    FIRST_TOKEN_SECONDS,
    QUEUE_SECONDS,
    REQUEST_SECONDS,
    RUNNING,
    WAITING,
    ServingMetrics,
)
from pipeline.counts import Counts


class RequestMeter:
    """Follows one request to generate: waiting, running, finished. Its calls may be left out, but not the last one."""

    def __init__(self, metrics: ServingMetrics) -> None:
        """The request begins to wait now."""
        self._metrics = metrics
        self._started = time.monotonic()
        self._is_running = self._has_ended = False
        self._last_tokens: dict[int, float] = {}  # when each sample's last ones came
        metrics.move(WAITING, 1)

    def slot_found(self) -> None:
        """The first of its samples has a slot."""
        if self._is_running or self._has_ended:
            return
        self._is_running = True
        self._metrics.observe(QUEUE_SECONDS, time.monotonic() - self._started)
        self._metrics.move(WAITING, -1)
        self._metrics.move(RUNNING, 1)

    def tokens(self, num_tokens: int, sample: int = 0) -> None:
        """So many tokens of a sample have come together."""
        if not num_tokens or self._has_ended:
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
        """It is over, with these counts in all, of so many drafts; a second call changes nothing."""
        if self._has_ended:
            return
        self._has_ended = True
        self._metrics.move(RUNNING if self._is_running else WAITING, -1)
        self._metrics.observe(REQUEST_SECONDS, time.monotonic() - self._started)
        self._metrics.add(FINISHED, 1, finished_reason=reason)
        if counts is not None:
            self._metrics.add_counts(counts, num_drafts)
