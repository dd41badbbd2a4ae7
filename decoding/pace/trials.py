"""Trials: whether a drafter is worth its time, decided by the clock.

A plan weighs what drafts cost against what they yield. What a drafter costs beside its drafts (looking up, learning,
reading features, planning) is spent in every round, so it is no part of that. Now and then some rounds are done the
other way: without the drafter while it drafts, with it while it rests. The faster way goes on; a drafter must be a
little faster than rest, for rounds do not show all that it costs. The next trial comes later than the last one, after
so long a time that what the last one lost is a small share of it.

A machine that does other work is now faster and now slower, for seconds. So a trial is compared with rounds of the
settled way before it and behind it, and what is tried goes on only after those behind; if it was only a little faster,
after a second trial. A trial that is clearly slower or clearly faster is decided at its own end.

A head reads the target's features, which cost time, and a row that has missed some cannot draft again. So a trial of
rest has two parts there: features go on in the first one, and the second one, without them, is only begun if it could
be the faster way. The second part is compared with rounds before it alone: behind it the rows could not draft.
"""

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import islice
from statistics import median

_FIRST = 16  # rounds before the first trial, at least
_FIRST_ROW_ROUNDS, _FEWER_ROW_ROUNDS = (
    128,
    32,
)  # and rounds of a row, so that acceptance is known; fewer if drafts look slow
_LENGTH = 12  # rounds of a trial that count, at least
_ROW_ROUNDS = 24  # and rounds of a row: how many tokens a row accepts differs much from round to round
_SLOW_LENGTH = 4  # and fewer, but these, where the way that is tried is clearly slower
_SLOW, _FAST = 0.75, 1.33  # times the settled way's speed: less is clearly slower, more is clearly faster
_SURE = 1.1  # times the settled way's speed: what is faster by less is tried once more before it goes on
_SETTLED = 2  # times the rounds of a trial: as many of the settled way before it, and behind it, are compared with it
_SKIPPED = 2  # rounds after a change: a drafter reads what it missed, once
_INTERVAL, _LONG_INTERVAL = 96, 384  # rounds between trials after a change, and after one to a clearly faster way
_LONGEST = 4096  # and at most, where nothing changes and little is lost
_MAX_LOSS = 1 / 128  # of the time until the next trial, lost in a trial of the slower way
_LATEST = 65536  # rounds until the next trial, however much the last one lost: the machine may have stood still
_GAIN = 1.05  # times the speed of rest: a drafter that wakes must be this much faster, as other work blurs every time
_LEAST_GAIN = 1.02  # and one that goes on this much: rounds do not show all that it costs, such as features of prompts
_MAX_FEATURES = 0.35  # of the time of a round without drafts: what features cost at most, in small models
_CLEARLY = 1.5  # times plain decoding as the cost table has it: a drafter that is this fast needs no trial
_MAX_EXCESS = 3.0  # times the median time for a round's size: more than that is other work on the machine


@dataclass(frozen=True)
class Round:
    """What a round yielded and took, each in units of a plain round as the cost table has it."""

    num_tokens: float  # of a row, on average
    time: float
    size: float = 1.0  # the time that the cost table has for what was done in it


class Trials:
    """Which way rounds are done now, and how fast both were lately."""

    def __init__(self, *, has_features: bool = False, clearly: float = _CLEARLY) -> None:
        """Begin with the drafter. `has_features`: it reads the target's, and they take time.

        While rounds are more than `clearly` times as fast as plain ones there are no trials.
        """
        self.is_resting = False
        self.keeps_features = False  # whether features go on in this rest, which may soon be over
        self.is_trial = False  # whether the way of now is tried, and not settled
        self._has_features, self._clearly = has_features, clearly
        self._lately: deque[Round] = deque(maxlen=_SETTLED * max(_LENGTH, _ROW_ROUNDS))  # of the way that is settled
        self._tried: list[Round] = []
        self._tried_before: list[Round] = []  # in the first part of a trial that has two
        self._waited: list[Round] = []  # of a trial, until most rows could draft
        self._behind: list[Round] | None = None  # rounds of the settled way since a trial that is not decided
        self._num_before_trial, self._interval = _FIRST, _INTERVAL
        self._num_row_rounds = 0
        self._rest_speed = 0.0  # in the last trial, if the drafter goes on after it
        self._is_second = False  # whether the next trial, or that of now, tries once more what seemed faster

    def forget_rounds(self) -> None:
        """Forget how fast rounds were lately, since something else has changed them; the next trial comes later.

        A trial that is under way, or is not decided, ends without a change.
        """
        if self.is_trial:
            self.is_trial = self.keeps_features = False
            self.is_resting = not self.is_resting
        self._lately.clear()
        self._behind, self._is_second = None, False
        self._num_before_trial = max(self._num_before_trial, _FIRST)

    def observe(self, done: Round, num_rows: int) -> bool:
        """Learn what a round of `num_rows` rows yielded and took; return whether another way is settled now."""
        rested = self.is_resting != self.is_trial
        self._observe(done, num_rows)
        return rested != (self.is_resting != self.is_trial)

    def wait_for_rows(self, done: Round) -> None:
        """Take a round in which most rows cannot draft: all that it shows is a part of what a trial costs."""
        if self.is_trial:
            self._waited.append(done)

    def _observe(self, done: Round, num_rows: int) -> None:
        self._num_row_rounds += num_rows
        if self.is_trial:
            self._tried.append(done)
            if len(self._tried) <= _SKIPPED:
                self._num_row_rounds = 0
            elif self._num_row_rounds >= _ROW_ROUNDS and (
                len(self._tried) >= _SKIPPED + _LENGTH or self._is_clearly_slower()
            ):
                self._go_on()
        elif self._behind is not None:
            self._behind.append(done)
            if len(self._behind) - _SKIPPED >= _SETTLED * (len(self._tried) - _SKIPPED):
                self._decide()
        else:
            self._settled(done)

    def _settled(self, done: Round) -> None:
        self._lately.append(done)
        self._num_before_trial -= 1
        if self._num_before_trial > 0 and not self._is_slower_than_rest_was():
            return
        if self._num_row_rounds < _FIRST_ROW_ROUNDS:
            looks_slow = self._num_row_rounds >= _FEWER_ROW_ROUNDS and _speed(self._lately) < 1
            if self.is_resting or not looks_slow:
                return
        if not self.is_resting and _speed(self._lately) > self._clearly:
            self._is_second = False
            self._wait(self._longer_interval)
            return
        self.is_trial, self.is_resting = True, not self.is_resting
        self._tried, self._tried_before, self._waited = [], [], []
        self.keeps_features = self.is_resting and self._has_features

    def _is_slower_than_rest_was(self) -> bool:
        """Tell whether drafts that seemed to pay in the last trial were slower since than rest was in it."""
        if not self._rest_speed or self._num_before_trial % _FIRST or len(self._lately) < (self._lately.maxlen or 0):
            return False
        return _speed(self._lately) < self._rest_speed

    @property
    def _compared(self) -> tuple[list[Round], list[Round]]:
        """The rounds of the trial that count, and those of the settled way that they are compared with."""
        counted = self._tried[_SKIPPED:]
        before = list(islice(reversed(self._lately), _SETTLED * len(counted)))
        return counted, before + (self._behind or [])[_SKIPPED:]

    def _is_clearly_slower(self) -> bool:
        counted, settled = self._compared
        return len(counted) >= _SLOW_LENGTH and _speed(counted) < _SLOW * _speed(settled)

    def _go_on(self) -> None:
        """End a trial, or the first part of it."""
        counted, settled = self._compared
        ratio = _speed(counted) / _speed(settled)
        if self.keeps_features and ratio * (1 + _MAX_FEATURES) > 1:
            self.keeps_features = False
            self._tried_before, self._tried = self._tried, []
        elif _SLOW < ratio < _FAST and not self._tried_before:
            self.is_trial = self.keeps_features = False
            self.is_resting, self._behind = not self.is_resting, []
        else:
            self.is_resting = not self.is_resting
            self._decide()

    def _decide(self) -> None:
        """Let the faster way go on. The settled way is that of now."""
        counted, settled = self._compared
        self.is_trial = self.keeps_features = False
        self._behind = None
        self._lately.clear()
        needed = _GAIN if self.is_resting else 1 / _LEAST_GAIN
        ratio, is_second = _speed(counted) / _speed(settled), self._is_second
        # A trial in which rows have missed features is not repeated: they could not draft for longer still.
        self._is_second = needed < ratio < _SURE and not is_second and not self._tried_before
        if self._is_second:
            self._num_before_trial = _FIRST
            return
        self._rest_speed = 0.0
        if ratio > needed:
            self.is_resting = not self.is_resting
            is_dear = self.is_resting and self._has_features  # rows that are under way cannot draft when it wakes
            self._wait(_LONG_INTERVAL if ratio > _FAST or is_dear else _INTERVAL)
            return
        # Tokens that the settled way would have written beyond the trial's in its time, and the rounds they take.
        tried = self._waited + self._tried_before + self._tried
        self._rest_speed = 0.0 if self.is_resting else _speed(counted)
        num_lost = _speed(settled) * sum(each.time for each in tried) - _num_tokens(tried)
        num_rounds = num_lost * len(settled) / _num_tokens(settled)
        self._wait(max(self._longer_interval, min(int(num_rounds / _MAX_LOSS), _LATEST)))

    @property
    def _longer_interval(self) -> int:
        return min(2 * self._interval, _LONGEST)

    def _wait(self, interval: int) -> None:
        self._num_before_trial = self._interval = interval


def _speed(rounds: Seq[Round] | deque[Round]) -> float:
    """Return the tokens over the time of these rounds; one that other work slowed counts as slow, not as endless.

    What is slow depends on a round's size: one in which all rows draft takes several times as long as one without.
    """
    longest = _MAX_EXCESS * median(each.time / each.size for each in rounds)
    return _num_tokens(rounds) / sum(min(each.time, longest * each.size) for each in rounds)


def _num_tokens(rounds: Iterable[Round]) -> float:
    return sum(each.num_tokens for each in rounds)
