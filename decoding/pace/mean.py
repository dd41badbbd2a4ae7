"""A running mean. It imports nothing, since what reads a run without torch has what engines learned."""


class Mean:
    """A running mean that starts from a guess and forgets old values."""

    def __init__(self, first_guess: float, weight: float, decay: float) -> None:
        """Start with a guess that counts as `weight` observations; each observation fades by `decay` with the next."""
        self._sum, self._weight, self._decay = first_guess * weight, weight, decay

    @property
    def value(self) -> float:
        return self._sum / self._weight

    def observe(self, value: float) -> None:
        self._sum = self._sum * self._decay + value
        self._weight = self._weight * self._decay + 1
