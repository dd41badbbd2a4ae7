"""DeltaStream: deltas on their way from an engine's steps to whoever awaits them."""

from __future__ import annotations

import asyncio
import time

from actors.engine.deltas import Delta, Growths
from decoding.sequence import Sequence


class DeltaStream:
    """Deltas on their way to whoever awaits them."""

    def __init__(self, growths: Growths, sequences: frozenset[Sequence], tell_every_s: float) -> None:
        self.deltas: list[Delta] = []
        self.begins = False  # to be told
        self._waiting: frozenset[Sequence] | None = sequences  # None: it has begun
        self.is_new = asyncio.Event()
        self.error: Exception | None = None
        self.growths = growths
        self._tell_every_s, self._told_at = tell_every_s, float("-inf")

    def tell_that_it_begins(self, up_next: set[Sequence]) -> None:
        """If one of these is the first of its own."""
        if self._waiting is not None and not self._waiting.isdisjoint(up_next):
            self._waiting, self.begins = None, True
            self.is_new.set()

    def look(self, tell_every_s: float) -> None:
        """Between two steps. What was told last is so many seconds old, or the new waits; an end never does."""
        try:
            new = self.growths.look()
        except Exception as error:  # noqa: BLE001 - for whoever awaits this stream; others go on
            self.error = self.error or error
            self.is_new.set()
            return
        self.deltas += new
        now, every_s = time.monotonic(), max(tell_every_s, self._tell_every_s)
        if new and (now >= self._told_at + every_s or any(delta.ending is not None for delta in new)):
            self._told_at = now
            self.is_new.set()
