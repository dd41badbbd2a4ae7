"""Acceptance: the chance that the draft model's next tokens are accepted, estimated from past rounds.

Shapes: B rows, K draft positions.
"""

from collections import deque
from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from decoding.sequence import Sequence

_FIRST_GUESS = 0.9  # before anything was drafted: a guess that is too high is soon mended, one too low is never tried
# The values of these three weights come from a simulation (docs/log.md, "Adaptive lost up to 9 %").
_ROW_WEIGHT = 32.0  # drafted tokens that the mean of all rows counts for in a row's own estimate
_POSITION_WEIGHT = 16.0  # and in the estimate of a position
_DECAY = 0.99  # of what all rows learned, per round with a draft
_MAX_RATE = 0.995  # no estimate is higher: nothing is certain
ROUNDS = 200  # with drafts, that are remembered


class Acceptance:
    """Running estimates over all rows, for each row and for each draft position.

    A token at a position that was reached is accepted with odds (row) x odds (position) / odds (all): a row that is
    easier than the others is so at all depths, and a draft that gets worse with depth does so in all rows.

    Only the number of accepted tokens counts, never which token was rejected or how many tokens stood behind it.
    """

    def __init__(self, num_positions: int) -> None:
        """Start estimates for drafts of at most `num_positions` tokens."""
        self._accepted_K, self._tried_K = np.zeros(num_positions), np.zeros(num_positions)
        self._accepted, self._tried = _FIRST_GUESS * _ROW_WEIGHT, _ROW_WEIGHT
        self._of_row: dict[Sequence, list[int]] = {}  # accepted and tried tokens of unfinished sequences

    def observe(self, sequences: Seq[Sequence], num_drafted: Seq[int], num_accepted: Seq[int]) -> None:
        """Learn how much each sequence drafted, and how much of it was accepted."""
        if not any(num_drafted):
            for sequence in sequences:
                if sequence.finish_reason is not None:
                    self._of_row.pop(sequence, None)
            return
        for counts_K in (self._accepted_K, self._tried_K):
            counts_K *= _DECAY
        self._accepted *= _DECAY
        self._tried *= _DECAY
        # Tokens behind a rejected one were never tried.
        tried_B = [
            accepted + 1 if accepted < drafted else drafted
            for drafted, accepted in zip(num_drafted, num_accepted, strict=True)
        ]
        accepted_B = [accepted if tried else 0 for accepted, tried in zip(num_accepted, tried_B, strict=True)]
        self._accepted_K += _num_at_least(accepted_B, len(self._accepted_K))
        self._tried_K += _num_at_least(tried_B, len(self._tried_K))
        self._accepted += sum(accepted_B)
        self._tried += sum(tried_B)
        of_row = self._of_row
        for sequence, accepted, tried in zip(sequences, accepted_B, tried_B, strict=True):
            if tried:
                counts = of_row.get(sequence)
                if counts is None:
                    counts = of_row[sequence] = [0, 0]
                counts[0] += accepted
                counts[1] += tried
            if sequence.finish_reason is not None:
                of_row.pop(sequence, None)
        if len(self._of_row) > 2 * len(sequences):  # some were dropped without finishing
            self._of_row = {s: self._of_row[s] for s in sequences if s in self._of_row}

    def survival_BK(self, sequences: Seq[Sequence | None]) -> npt.NDArray[np.float64]:
        """Return the chances [B, K] that a sequence's first 1, ..., K tokens are all accepted; None: a new sequence."""
        mean = min(self._accepted / self._tried, _MAX_RATE)
        counts = [self._of_row.get(s, [0, 0]) if s is not None else [0, 0] for s in sequences]
        counts_B2 = np.array(counts, dtype=np.float64)
        rate_B = (counts_B2[:, 0] + mean * _ROW_WEIGHT) / (counts_B2[:, 1] + _ROW_WEIGHT)
        rate_K = (self._accepted_K + mean * _POSITION_WEIGHT) / (self._tried_K + _POSITION_WEIGHT)
        odds_BK = _odds(rate_B)[:, None] * _odds(rate_K) / _odds(np.array(mean))
        rate_BK = np.minimum(odds_BK / (1 + odds_BK), _MAX_RATE)
        survival_BK: npt.NDArray[np.float64] = rate_BK.cumprod(axis=1)
        return survival_BK


def _num_at_least(lengths: Seq[int], width: int) -> npt.NDArray[np.int64]:
    """Count the lengths that are at least 1, 2, ..., `width`."""
    counts = np.bincount(lengths, minlength=width + 1)
    return counts[::-1].cumsum()[::-1][1 : width + 1]


def _odds(rate: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    odds: npt.NDArray[np.float64] = np.clip(rate, 1 - _MAX_RATE, _MAX_RATE)
    return odds / (1 - odds)


class RecentDrafts(deque[tuple[int, int]]):
    """The tokens drafted and accepted in the last rounds in which the draft model drafted at all."""

    def __init__(self) -> None:
        super().__init__(maxlen=ROUNDS)

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from a round."""
        if num_drafted:
            self.append((num_drafted, num_accepted))

    def totals(self) -> tuple[int, int]:
        """Return the tokens drafted and accepted in these rounds."""
        return sum(drafted for drafted, _ in self), sum(accepted for _, accepted in self)
