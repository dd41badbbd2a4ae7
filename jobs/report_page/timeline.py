"""Timeline: when the units of a run were at work, and how many tokens a second they wrote together."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class UnitTime(NamedTuple):
    """When a unit was committed, in seconds since 1970, and how long it took; None where its part does not say."""

    ended_at: float
    seconds: float | None


@dataclass
class Timeline:
    """The times and tokens of units: some numbers for each, so that a million units fit."""

    _begun: array[float] = field(default_factory=lambda: array("d"))
    _ended: array[float] = field(default_factory=lambda: array("d"))
    _tokens: array[float] = field(default_factory=lambda: array("d"))
    _rows: array[float] = field(default_factory=lambda: array("d"))
    knows_seconds: bool = True  # False as soon as a unit's time is unknown

    def add(self, time: UnitTime, num_tokens: int, num_rows: int) -> None:
        """Add a unit."""
        self.knows_seconds &= time.seconds is not None
        self._begun.append(time.ended_at - (time.seconds or 0.0))
        self._ended.append(time.ended_at)
        self._tokens.append(num_tokens)
        self._rows.append(num_rows)

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self._ended)

    @property
    def began_at(self) -> float:
        """When the first unit began (or ended, where parts do not say how long they took), in seconds since 1970."""
        return min(self._begun)

    @property
    def ended_at(self) -> float:
        """When the last unit was committed."""
        return max(self._ended)

    @property
    def working_seconds(self) -> float | None:
        """Seconds in which at least one unit was under way, pauses left out; None where parts do not say."""
        if not self or not self.knows_seconds:
            return None
        order = np.argsort(np.array(self._begun))
        begun, ended = np.array(self._begun)[order], np.maximum.accumulate(np.array(self._ended)[order])
        pauses = np.maximum(begun[1:] - ended[:-1], 0.0).sum()
        return float(ended[-1] - begun[0] - pauses)

    def tokens_per_second(self, num_bins: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the edges of equal stretches of time, in seconds from the begin, and the tokens a second in each.

        A unit's tokens are spread evenly over its time.
        """
        first, last = self.began_at, self.ended_at
        edges = np.linspace(0.0, max(last - first, 1e-3), num_bins + 1)
        tokens = np.zeros(num_bins)
        width = edges[1]
        for begun, ended, number in zip(self._begun, self._ended, self._tokens, strict=True):
            begin, end = begun - first, max(ended - first, begun - first + 1e-6)
            low, high = int(min(begin // width, num_bins - 1)), int(min(end // width, num_bins - 1))
            for place in range(low, high + 1):
                inside = max(min(end, edges[place + 1]) - max(begin, edges[place]), 0.0)
                tokens[place] += number * inside / (end - begin)
        return edges, tokens / width
