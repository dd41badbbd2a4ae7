"""Calibration: how often what a lookup offered stood, by the kind of match it came from."""

from collections.abc import Hashable
from collections.abc import Sequence as Seq

_GUESS_WEIGHT = 4.0  # tokens that the guess counts for
_MEMORY = 512.0  # tokens after which the count of a kind is halved, so that what is recent weighs more
_MOST = 0.99  # no estimate is higher: nothing is certain


class Calibration:
    """A running rate for each kind of match, starting from a guess."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._counts: dict[Hashable, tuple[float, float]] = {}  # accepted, tried

    def rate(self, kind: Hashable, guess: float) -> float:
        """The chance that the next token of a match of this kind stands, given that those before it do."""
        accepted, tried = self._counts.get(kind, (0.0, 0.0))
        return min((accepted + guess * _GUESS_WEIGHT) / (tried + _GUESS_WEIGHT), _MOST)

    def observe(self, kinds: Seq[Hashable], num_accepted: int) -> None:
        """Learn from a draft whose tokens came from matches of these kinds; the first `num_accepted` of them stood."""
        for index, kind in enumerate(kinds[: num_accepted + 1]):  # what is behind a rejected token was never tried
            accepted, tried = self._counts.get(kind, (0.0, 0.0))
            if tried >= _MEMORY:
                accepted, tried = accepted / 2, tried / 2
            self._counts[kind] = (accepted + (index < num_accepted), tried + 1)
