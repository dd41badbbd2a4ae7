"""Trials: whether a drafter is worth its time, decided by the clock.

A plan weighs what drafts cost against what they yield. What a drafter costs beside its drafts (looking up, learning,
reading features, planning) is spent in every round, so it is no part of that. Now and then some rounds are done the
other way: without the drafter while it drafts, with it while it rests. The faster way goes on, and the next trial comes
later than the last one.
"""

from collections import deque
from statistics import median

_FIRST = 16  # rounds before the first trial, at least
_FIRST_ROW_ROUNDS = 128  # and rounds of a row, so that acceptance is known by then
_LENGTH = 6  # rounds of a trial that count
_SKIPPED = 2  # rounds after a change: a drafter reads what it missed, once
_INTERVAL = 96  # rounds between trials, after a change
_LONGEST = 4096  # and at most, where nothing changes
_CLEARLY = 1.5  # times plain decoding as the cost table has it: a drafter that is this fast needs no trial


class Trials:
    """Which way rounds are done now, and how fast both were lately."""

    def __init__(self) -> None:
        """Begin with the drafter."""
        self.is_resting = False
        self._is_trial = False
        self._lately: deque[float] = deque(maxlen=4 * _LENGTH)  # speeds of the way that is settled
        self._tried: list[float] = []
        self._num_before_trial, self._interval = _FIRST, _INTERVAL
        self._num_row_rounds = 0

    def observe(self, speed: float, num_rows: int) -> None:
        """Learn the speed of a round of `num_rows` rows, over that of plain decoding as the cost table has it."""
        if self._is_trial:
            self._tried.append(speed)
            if len(self._tried) == _SKIPPED + _LENGTH:
                self._decide(median(self._tried[_SKIPPED:]) > median(self._lately))
            return
        self._lately.append(speed)
        self._num_before_trial -= 1
        self._num_row_rounds += num_rows
        if self._num_before_trial > 0 or self._num_row_rounds < _FIRST_ROW_ROUNDS:
            return
        if not self.is_resting and median(self._lately) > _CLEARLY:
            self._wait(2 * self._interval)
            return
        self._is_trial, self._tried, self.is_resting = True, [], not self.is_resting

    def _decide(self, is_faster: bool) -> None:
        """End a trial: go on with what was tried, or go back."""
        self._is_trial = False
        self._lately.clear()
        if is_faster:
            self._wait(_INTERVAL)
        else:
            self.is_resting = not self.is_resting
            self._wait(2 * self._interval)

    def _wait(self, interval: int) -> None:
        self._num_before_trial = self._interval = min(interval, _LONGEST)
