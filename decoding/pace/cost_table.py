"""CostTable: what a round costs, in seconds, as measured on the models and the device that run it.

Overhead is the time beside its forwards: a line over positions, and a constant for rounds that draft, both fitted to
measured rounds.
"""

from bisect import bisect_left
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from decoding.pace.mean import Mean

_WEIGHT = 8.0  # rounds that the measurement at start-up counts for, at each end of its line
_DECAY = 0.98  # of what was observed, per round
_MIN_SECONDS = 1e-5  # a line at zero would never rise
_MAX_EXCESS = 4.0  # times the expected time: more than that is other work on the machine


@dataclass(frozen=True)
class CostTable:
    """Seconds of a target forward by its number of tokens, of a draft's by its number of rows, and of the rest.

    The rest is overhead of the engine: `round_seconds` for every round, `draft_round_seconds` for one in which a model
    drafts, and `position_seconds` for every row and position whose distribution is computed (rows x (longest draft + 1)
    in verification, and once for each drafted token).
    """

    target: tuple[tuple[int, float], ...]  # (tokens, seconds), ascending in both
    draft: tuple[tuple[int, float], ...]  # (rows, seconds)
    round_seconds: float = 0.0
    position_seconds: float = 0.0
    draft_round_seconds: float = 0.0
    # Drafting happens in another process while this one verifies other rows: of the two the busier one sets the pace.
    # `draft` is then the whole time of a step there, and each draft is on its way for `trip_seconds` more, however long
    # it is.
    is_overlapped: bool = False
    trip_seconds: float = 0.0
    # Where the target is in other processes, `target` is the time of the busiest one, and the rest passes on the way.
    chain: tuple[tuple[int, float], ...] = ((1, 0.0),)  # (tokens, seconds)
    num_lanes: int = 1  # groups of rows that take turns: what is on the way is hidden behind the rounds of others
    # A draft of at most this many tokens takes one forward, whose time is in `draft`; 0: each token takes a forward.
    block_tokens: int = 0

    @property
    def is_chain(self) -> bool:
        """Whether the target is in other processes."""
        return self.chain[-1][1] > 0

    def target_seconds(self, num_tokens: int) -> float:
        """Return the time of one target forward over `num_tokens` tokens, interpolated."""
        return _interpolate(self.target, num_tokens)

    def draft_seconds(self, num_rows: int) -> float:
        """Return the time of one draft step for `num_rows` rows, interpolated."""
        return _interpolate(self.draft, num_rows)

    def drafting_seconds(self, num_steps: int, num_rows: int) -> float:
        """Return the time of drafting `num_steps` tokens of `num_rows` rows, without their positions' overhead."""
        num_forwards = min(num_steps, 1) if self.block_tokens else num_steps
        return num_forwards * self.draft_seconds(num_rows) + self.draft_round_seconds if num_steps else 0.0

    def of_round(self, num_rows: int, num_drafted: int) -> float:
        """Return the time of a round in which each row of a lane drafts as many tokens."""
        num_tokens, drafting = num_rows * (1 + num_drafted), self.drafting_seconds(num_drafted, num_rows)
        verifying = self.target_seconds(num_tokens) + self.round_seconds + num_tokens * self.position_seconds
        if not self.is_overlapped:
            drafting += num_rows * num_drafted * self.position_seconds  # of the draft's steps
        busiest = max(verifying, drafting) if self.is_overlapped else verifying + drafting
        on_the_way = self.trip_seconds * (num_drafted > 0) + _interpolate(self.chain, num_tokens)
        return max(busiest, (verifying + drafting + on_the_way) / self.num_lanes)

    def target_by_tokens(self, max_tokens: int) -> npt.NDArray[np.float64]:
        """Tabulate `target_seconds` for 0 to `max_tokens` tokens."""
        return _tabulate(self.target, max_tokens)

    def chain_by_tokens(self, max_tokens: int) -> npt.NDArray[np.float64]:
        """Tabulate what a forward is on its way for, for 0 to `max_tokens` tokens."""
        return _tabulate(self.chain, max_tokens)

    def draft_by_rows(self, max_rows: int) -> npt.NDArray[np.float64]:
        """Tabulate `draft_seconds` for 0 to `max_rows` rows; a step of no rows costs nothing."""
        return _tabulate(self.draft, max_rows) * (np.arange(max_rows + 1) > 0)


@lru_cache(maxsize=256)
def _tabulate(table: tuple[tuple[int, float], ...], max_size: int) -> npt.NDArray[np.float64]:
    return np.array([_interpolate(table, size) for size in range(max_size + 1)])


def _interpolate(table: Seq[tuple[int, float]], size: int) -> float:
    index = bisect_left(table, (size, 0.0))
    if index == 0:
        return table[0][1]
    if index == len(table):
        (size_0, time_0), (size_1, time_1) = table[-2] if len(table) > 1 else table[-1], table[-1]
        slope = (time_1 - time_0) / (size_1 - size_0) if size_1 > size_0 else 0.0
        return time_1 + slope * (size - size_1)
    (size_0, time_0), (size_1, time_1) = table[index - 1], table[index]
    return time_0 + (time_1 - time_0) * (size - size_0) / (size_1 - size_0)


class Overhead:
    """A running fit of the table's overhead, which depends on the sampling parameters in use.

    The fit starts as the line that was measured at start-up, and the two ends of that line stay in it. So a long run of
    rounds of one shape corrects the line near that shape and changes it little elsewhere. (Scaling the whole line by
    the time of plain rounds made drafts look expensive that were never tried.)

    What a round with drafts takes beyond the line goes to their constant first: forwards of two models in turns push
    each other out of the caches, however many there are. (In the line alone it made long drafts, which were not tried,
    look several times as expensive as they are.)
    """

    def __init__(self, costs: CostTable, few_positions: int, many_positions: int) -> None:
        """Start with the line of `costs`, held at these two numbers of positions."""
        self._costs = costs
        self._ends = [(positions, _line(costs, positions)) for positions in (few_positions, many_positions)]
        self._seen = (0.0, 0.0, 0.0, 0.0, 0.0)  # sums of 1, x, x * x, y, x * y
        self._of_drafts = Mean(first_guess=0.0, weight=_WEIGHT, decay=_DECAY)

    def observe(self, num_positions: int, seconds: float, *, drafts: bool = False) -> None:
        """Learn that a round with `num_positions` positions took `seconds` beside its forwards.

        `drafts`: a model drafted in it.
        """
        costs = self.costs
        line = _line(costs, num_positions)
        seconds = min(max(seconds, 0.0), _MAX_EXCESS * max(line + drafts * costs.draft_round_seconds, _MIN_SECONDS))
        if drafts:
            self._of_drafts.observe(seconds - line)
            seconds = max(seconds - self._of_drafts.value, 0.0)
        self._seen = _plus(self._seen, num_positions, seconds, 1.0, _DECAY)

    @property
    def costs(self) -> CostTable:
        """The cost table with its overhead as it is now; no figure is below zero."""
        sums = self._seen
        for positions, seconds in self._ends:
            sums = _plus(sums, positions, seconds, _WEIGHT)
        n, x, xx, y, xy = sums
        spread = n * xx - x * x
        slope = max((n * xy - x * y) / spread, 0.0) if spread > 0 else self._costs.position_seconds
        height = (y - slope * x) / n
        if height < 0:  # a line through the origin
            height, slope = 0.0, xy / xx
        of_drafts = max(self._of_drafts.value, 0.0)
        return replace(self._costs, round_seconds=height, position_seconds=slope, draft_round_seconds=of_drafts)


def _line(costs: CostTable, num_positions: int) -> float:
    return costs.round_seconds + num_positions * costs.position_seconds


def _plus(
    sums: tuple[float, float, float, float, float], x: float, y: float, weight: float, decay: float = 1.0
) -> tuple[float, float, float, float, float]:
    n, sum_x, sum_xx, sum_y, sum_xy = (decay * value for value in sums)
    weight /= x * x  # minimize the relative error
    return n + weight, sum_x + weight * x, sum_xx + weight * x * x, sum_y + weight * y, sum_xy + weight * x * y
