"""The median of some ratios and its interval, and what they say of a change."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import comb
from statistics import median
from typing import Literal

Verdict = Literal["within 2 %", "slower", "unclear"]
_CONFIDENCE = 0.95
_LEAST = 0.98
_WIDEST = 0.03


@dataclass(frozen=True)
class Interval:
    """A median of paired ratios, and an interval that holds the true median with 95 % confidence.

    The interval lies between two of the sorted ratios. It assumes that the pairs are independent, and nothing of how
    they are distributed: the number of ratios below the true median is binomial (David and Nagaraja, Order Statistics,
    section 7.1).
    """

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, ratios: Seq[float]) -> "Interval":
        """Return the interval of at least 6 ratios; fewer cannot reach the confidence. Raises ValueError."""
        number = len(ratios)
        if number < 6:
            raise ValueError(f"an interval needs at least 6 pairs, got {number}")
        left_out, outside = 0, 2 / 2**number
        while outside + 2 * comb(number, left_out + 1) / 2**number <= 1 - _CONFIDENCE:
            left_out += 1
            outside += 2 * comb(number, left_out) / 2**number
        ordered = sorted(ratios)
        return cls(ordered[left_out], median(ratios), ordered[-1 - left_out])

    def __format__(self, style: str) -> str:
        """Write its ends and the median between them."""
        return " ".join(f"{value:.3f}" for value in (self.low, self.median, self.high))

    @property
    def is_narrow(self) -> bool:
        """Whether the interval is narrow enough for a verdict."""
        return self.high - self.low < _WIDEST + 1e-9

    @property
    def verdict(self) -> Verdict:
        """What it says: the speed is at most 2 % below the base's, it is slower, or the runs do not tell.

        A wide interval says nothing, unless all of it lies above the base's speed.
        """
        if self.high < _LEAST:
            return "slower"
        return "within 2 %" if self.low >= _LEAST and (self.is_narrow or self.low >= 1) else "unclear"
