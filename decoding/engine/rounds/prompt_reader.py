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

    def __init__(self, drafter: Drafter, num_uncounted: int) -> None:
        """Count the rows and the seconds behind the first `num_uncounted` rows.

        The first ones come at once, before anything is written, and do not show how often rows come.
        """
        self._drafter = drafter
        self._num_uncounted = num_uncounted
        self._num_rows, self._seconds = 0, 0.0

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        self._num_uncounted -= 1
        self._num_rows += self._num_uncounted < 0
        self._time(lambda: self._drafter.begin(slot, donor, num_shared))

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        self._time(lambda: self._drafter.prefill(slots, prompts))

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        self._time(lambda: self._drafter.admit(slots, sequences))

    def take(self) -> tuple[int, float]:
        """Return the rows that were begun since the last call, and the seconds."""
        taken = self._num_rows, self._seconds
        self._num_rows, self._seconds = 0, 0.0
        return taken

    def _time(self, read: Callable[[], None]) -> None:
        began = time.perf_counter()
        read()
        if self._num_uncounted < 0:
            self._seconds += time.perf_counter() - began
