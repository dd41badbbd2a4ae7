"""Calibration: how often the tokens that a lookup offered were accepted, by the kind of match they came from."""

from collections.abc import Hashable
from collections.abc import Sequence as Seq

_GUESS_WEIGHT = 4.0  # tokens that the guess counts for
_MEMORY = 512.0  # tokens after which the counts of a kind are halved, so that recent ones weigh more
_MAX_RATE = 0.99  # no estimate is higher: nothing is certain


class Calibration:
    """A running rate for each kind of match, starting from a guess."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, tuple[float, float]] = {}  # accepted, tried

    def rate(self, kind: Hashable, guess: float) -> float:
        """Estimate the chance that a match's next token is accepted, given that those before it are."""
        accepted, tried = self._counts.get(kind, (0.0, 0.0))
        return min((accepted + guess * _GUESS_WEIGHT) / (tried + _GUESS_WEIGHT), _MAX_RATE)

    def observe(self, kinds: Seq[Hashable], num_accepted: int) -> None:
        """Learn from a draft: the kinds of match that its tokens came from, and how many of them were accepted."""
        for index, kind in enumerate(kinds[: num_accepted + 1]):  # tokens behind a rejected one were never tried
            accepted, tried = self._counts.get(kind, (0.0, 0.0))
            if tried >= _MEMORY:
                accepted, tried = accepted / 2, tried / 2
            self._counts[kind] = (accepted + (index < num_accepted), tried + 1)
