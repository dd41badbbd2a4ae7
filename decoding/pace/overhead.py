"""Overhead: the time of a round beside its forwards, as a line over positions that is fitted to measured rounds."""

from dataclasses import replace

from decoding.pace.cost_table import CostTable

_WEIGHT = 8.0  # rounds that the measurement at start-up counts for, at each end of its line
_DECAY = 0.98  # of what was observed, per round
_MIN_SECONDS = 1e-5  # a line at zero would never rise
_MAX_EXCESS = 4.0  # times the expected time: more than that is other work on the machine


class Overhead:
    """A running fit of `round_seconds` and `position_seconds`, which depend on the sampling parameters in use.

    The fit starts as the line that was measured at start-up, and the two ends of that line stay in it. So a long run of
    rounds of one shape corrects the line near that shape and changes it little elsewhere. (Scaling the whole line by
    the time of plain rounds made drafts look expensive that were never tried.)
    """

    def __init__(self, costs: CostTable, few_positions: int, many_positions: int) -> None:
        """Start with the line of `costs`, held at these two numbers of positions."""
        self._costs = costs
        self._ends = [(positions, _line(costs, positions)) for positions in (few_positions, many_positions)]
        self._seen = (0.0, 0.0, 0.0, 0.0, 0.0)  # sums of 1, x, x * x, y, x * y

    def observe(self, num_positions: int, seconds: float) -> None:
        """Learn that a round with `num_positions` positions took `seconds` beside its forwards."""
        expected = max(_line(self.costs, num_positions), _MIN_SECONDS)
        seconds = min(max(seconds, 0.0), _MAX_EXCESS * expected)
        self._seen = _plus(self._seen, num_positions, seconds, 1.0, _DECAY)

    @property
    def costs(self) -> CostTable:
        """The cost table with the line as it is now; neither figure is below zero."""
        sums = self._seen
        for positions, seconds in self._ends:
            sums = _plus(sums, positions, seconds, _WEIGHT)
        n, x, xx, y, xy = sums
        spread = n * xx - x * x
        slope = max((n * xy - x * y) / spread, 0.0) if spread > 0 else self._costs.position_seconds
        height = (y - slope * x) / n
        if height < 0:  # a line through the origin
            height, slope = 0.0, xy / xx
        return replace(self._costs, round_seconds=height, position_seconds=slope)


def _line(costs: CostTable, num_positions: int) -> float:
    return costs.round_seconds + num_positions * costs.position_seconds


def _plus(
    sums: tuple[float, float, float, float, float], x: float, y: float, weight: float, decay: float = 1.0
) -> tuple[float, float, float, float, float]:
    n, sum_x, sum_xx, sum_y, sum_xy = (decay * value for value in sums)
    weight /= x * x  # minimize the relative error
    return n + weight, sum_x + weight * x, sum_xx + weight * x * x, sum_y + weight * y, sum_xy + weight * x * y
