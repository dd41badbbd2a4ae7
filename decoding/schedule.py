"""How many draft tokens each row gets in a round: as many as pay, down to none.

A round costs what its draft steps and its target forward cost (`CostTable`, measured on the device itself). It yields
one token a row, plus each draft token that stands. A draft token at depth j of a row stands with probability a^j,
where a is the row's running acceptance estimate, and is worth drafting while that earns its share of time. Survival
only falls with depth, so for any number of draft tokens the ones most likely to stand are the best (TETRIS, arXiv
2502.15197; TurboSpec, arXiv 2406.14066), and trying every number finds the best number.

What a row gets depends on how much was accepted and on measured times, never on drafted tokens themselves: the choice
is lossless under rejection verification, too (a policy that drops a drafted token because of that token is not).
"""

from bisect import bisect_left
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from decoding.sequence import Sequence

_PRIOR_WEIGHT = 4.0  # drafted tokens that the running mean of all rows counts for in a row's own estimate
_FIRST_GUESS = 0.7  # acceptance before anything was drafted
_DECAY = 0.98  # per round, of the mean over all rows
_PROBE_EVERY = 64  # rounds without any draft after which one token is drafted again, to see whether it pays by now


@dataclass(frozen=True)
class CostTable:
    """Seconds of a target forward by its number of tokens, and of a draft step by its number of rows."""

    target: tuple[tuple[int, float], ...]  # (tokens, seconds), ascending in both
    draft: tuple[tuple[int, float], ...]  # (rows, seconds)

    def target_seconds(self, num_tokens: int) -> float:
        """Of one forward over so many tokens, interpolated."""
        return _interpolate(self.target, num_tokens)

    def draft_seconds(self, num_rows: int) -> float:
        """Of one draft step for so many rows, interpolated."""
        return _interpolate(self.draft, num_rows)


class FixedSchedule:
    """The same draft length for every row, for comparison."""

    def __init__(self, num_speculative_tokens: int) -> None:
        """The length."""
        self.ceiling = num_speculative_tokens

    def lengths(self, sequences: Seq[Sequence]) -> tuple[int, ...]:
        """Never more than can be kept: a round adds one token to what it accepts."""
        return tuple(min(self.ceiling, sequence.num_remaining_tokens - 1) for sequence in sequences)

    def observe(self, num_drafted: Seq[int], num_accepted: Seq[int]) -> None:
        """Nothing to learn."""


class AdaptiveSchedule:
    """Draft lengths that maximize the expected tokens a second of the whole batch."""

    def __init__(self, costs: CostTable, num_speculative_tokens: int) -> None:
        """Never more than `num_speculative_tokens` a row."""
        self._costs = costs
        self.ceiling = num_speculative_tokens
        self._accepted, self._tried = _FIRST_GUESS * _PRIOR_WEIGHT, _PRIOR_WEIGHT
        self._rounds_without_draft = 0

    def lengths(self, sequences: Seq[Sequence]) -> tuple[int, ...]:
        """The best lengths for these rows now."""
        limits = [min(self.ceiling, sequence.num_remaining_tokens - 1) for sequence in sequences]
        rates = [self._rate(sequence) for sequence in sequences]
        best = best_lengths(rates, limits, self._costs)
        if any(best) or not any(limits):
            self._rounds_without_draft = 0
            return best
        self._rounds_without_draft += 1
        if self._rounds_without_draft % _PROBE_EVERY:
            return best
        return tuple(min(limit, 1) for limit in limits)

    def observe(self, num_drafted: Seq[int], num_accepted: Seq[int]) -> None:
        """Learn from a round: what each row drafted, and how much of it stood."""
        if any(num_drafted):
            self._accepted *= _DECAY
            self._tried *= _DECAY
        for drafted, accepted in zip(num_drafted, num_accepted, strict=True):
            self._accepted += accepted
            self._tried += accepted + (accepted < drafted)  # what stands behind a rejected token was never tried

    def _rate(self, sequence: Sequence) -> float:
        """The chance that the row's next draft token stands, given that those before it do."""
        mean = self._accepted / self._tried
        accepted = sequence.num_accepted_tokens + mean * _PRIOR_WEIGHT
        return min(accepted / (sequence.num_tried_tokens + _PRIOR_WEIGHT), 0.995)


def best_lengths(rates: Seq[float], limits: Seq[int], costs: CostTable) -> tuple[int, ...]:
    """Draft lengths, at most `limits`, with the most expected tokens per second at these acceptance rates."""
    num_rows = len(rates)
    best_speed = num_rows / costs.target_seconds(num_rows)
    best: tuple[int, ...] = (0,) * num_rows
    step_seconds = costs.draft_seconds(num_rows)
    for depth in range(1, max(limits, default=0) + 1):
        slots = sorted(
            (
                (rate**position, row)
                for row, (rate, limit) in enumerate(zip(rates, limits, strict=True))
                for position in range(1, min(depth, limit) + 1)
            ),
            reverse=True,
        )
        expected, lengths = float(num_rows), [0] * num_rows
        chosen, speed_at_depth = 0, 0.0
        for number, (survival, _) in enumerate(slots, start=1):
            expected += survival
            speed = expected / (depth * step_seconds + costs.target_seconds(num_rows + number))
            if speed > speed_at_depth:
                chosen, speed_at_depth = number, speed
        if speed_at_depth > best_speed:
            for _, row in slots[:chosen]:
                lengths[row] += 1
            best_speed, best = speed_at_depth, tuple(lengths)
    return best


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
