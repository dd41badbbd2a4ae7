"""PromptReader: how a drafter begins slots and reads the prompts of newcomers, and how long that takes.

It happens between rounds, so no round shows it, and it is a part of what drafts cost.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq

from decoding.drafters.base import Drafter
from decoding.sequence import Sequence


class PromptReader:
    """The drafter's part of admission, timed."""

    def __init__(self, drafter: Drafter, num_slots: int) -> None:
        """Count the seconds of rows that come when all slots have been begun once.

        The first ones come at once, before anything is written, and do not show how often rows come.
        """
        self._drafter = drafter
        self._num_new, self._seconds = num_slots, 0.0

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        self._num_new -= 1
        self._time(lambda: self._drafter.begin(slot, donor, num_shared))

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        self._time(lambda: self._drafter.prefill(slots, prompts))

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        self._time(lambda: self._drafter.admit(slots, sequences))

    def take_seconds(self) -> float:
        """Return the seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _time(self, read: Callable[[], None]) -> None:
        began = time.perf_counter()
        read()
        if self._num_new < 0:
            self._seconds += time.perf_counter() - began
