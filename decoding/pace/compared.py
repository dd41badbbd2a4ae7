"""What rounds of one way did, and how fast they were beside those of another way."""

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import log
from statistics import median
from typing import NamedTuple

from decoding.pace.mean import Mean

_KEPT = 0.8  # of what earlier trials said of two drafters, with each one more
_CONTRADICTS = 0.29  # between the logarithms of two ratios: one is a third larger than the other
_DROPPED = 0.7  # times its usual speed: a settled way that becomes this slow is compared with all others soon
_OF_USUAL = 0.85  # is kept of the usual speed each time
_MAX_EXCESS = 3.0  # times the median time for a round's size: more than that is other work on the machine


class Round(NamedTuple):
    """What a round yielded and took, each in units of a plain round as the cost table has it."""

    num_tokens: float  # of a row, on average
    time: float
    size: float = 1.0  # the time that the cost table has for what was done in it


@dataclass
class Tally:
    """What was done in one way."""

    num_rounds: int = 0
    num_timed: int = 0  # of them; those behind a change tell nothing, and what follows counts the others alone
    num_tokens: float = 0.0  # of all rows
    time: float = 0.0  # in units of plain rounds as the cost table has them
    num_row_rounds: int = 0
    num_trials: int = 0

    def add(self, done: Round, num_rows: int, *, is_timed: bool) -> None:
        """Count a round, and what it took if that tells something."""
        self.num_rounds += 1
        if not is_timed:
            return
        self.num_row_rounds += num_rows
        self.num_tokens += done.num_tokens * num_rows
        self.time += done.time
        self.num_timed += 1  # the last one: another thread may read all of them meanwhile

    def __add__(self, other: "Tally") -> "Tally":
        """Return both together."""
        return Tally(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def figures(self, rest: "Tally | None") -> dict[str, float | None]:
        """Return for a reader what was done, and how fast beside rounds of rest, if there were any of both."""
        times = self.speed / rest.speed if rest is not None and rest.num_timed and self.num_timed else None
        counts = {"rounds": self.num_rounds, "trials": self.num_trials}
        return {**counts, "times_plain": times and round(times, 3)}

    @property
    def speed(self) -> float:
        """Tokens of a row in the time of a plain round as the cost table has it; some rounds were done."""
        return self.num_tokens / self.num_row_rounds * self.num_timed / self.time


@dataclass
class _Sums:
    """What trials of a drafter said of it and of the settled one, beside each other."""

    tokens: float
    time: float
    settled_tokens: float
    settled_time: float

    @property
    def ratio(self) -> float:
        return self.tokens * self.settled_time / (self.time * self.settled_tokens)


class Evidence:
    """What trials said of drafters beside the settled one: how much a row accepts differs much from trial to trial."""

    def __init__(self) -> None:
        self._of: dict[int, _Sums] = {}

    @property
    def ratios(self) -> dict[int, float]:
        """The speeds of drafters over that of the settled one."""
        return {way: each.ratio for way, each in dict(self._of).items()}  # any thread may ask

    def add(self, way: int, counted: Seq[Round], settled: Seq[Round]) -> tuple[float, bool]:
        """Return the ratio by this trial and earlier ones, which count less, and whether it contradicts them.

        If it does it counts alone.
        """
        new, before = _Sums(*sums_of(counted), *sums_of(settled)), self._of.get(way)
        self._of[way] = new
        if before is None:
            return new.ratio, False
        if abs(log(new.ratio / before.ratio)) > _CONTRADICTS:
            return new.ratio, True
        for name, value in vars(before).items():
            setattr(new, name, _KEPT * value + getattr(new, name))
        return new.ratio, False

    def turn(self, was: int, way: int) -> None:
        """Compare with the drafter `way`, which is settled now, what was compared with the one before, `was`."""
        own = self._of.pop(way, None)
        if own is None:
            self._of.clear()
            return
        for other in self._of.values():
            other.settled_tokens *= own.ratio
        self._of[was] = _Sums(own.settled_tokens, own.settled_time, own.tokens, own.time)


class UsualSpeed:
    """How fast the settled way is in the long run."""

    _mean: Mean | None = None

    def has_dropped(self, speed: float) -> bool:
        """Learn how fast it was lately; return whether that is much slower. Then this is the usual speed from now on.

        To be asked every few rounds.
        """
        has_dropped = self._mean is not None and speed < _DROPPED * self._mean.value
        if self._mean is None or has_dropped:
            self._mean = Mean(first_guess=speed, weight=1.0, decay=_OF_USUAL)
        else:
            self._mean.observe(speed)
        return has_dropped


def sums_of(rounds: Seq[Round]) -> tuple[float, float]:
    """Return the tokens and the time of these rounds, with what other work took of it cut off as in `speed_of`."""
    return num_tokens_of(rounds), num_tokens_of(rounds) / speed_of(rounds)


def speed_of(rounds: Seq[Round] | deque[Round]) -> float:
    """Return the tokens over the time of these rounds; one that other work slowed counts as slow, not as endless.

    What is slow depends on a round's size: one in which all rows draft takes several times as long as one without.
    """
    longest = _MAX_EXCESS * median(each.time / each.size for each in rounds)
    return num_tokens_of(rounds) / sum(min(each.time, longest * each.size) for each in rounds)


def num_tokens_of(rounds: Iterable[Round]) -> float:
    return sum(each.num_tokens for each in rounds)
