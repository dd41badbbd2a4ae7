"""IdleRounds: counts rounds in which hardly a row drafts. A draft model then reads no prompt before one drafts."""

_IDLE_ROUNDS = 16  # rounds with hardly a draft after which prompts are read only when a row drafts
_FEW = 4  # if at most one row in this many drafts, there is hardly a draft


class IdleRounds:
    """The rounds with hardly a draft since the last one with more."""

    def __init__(self) -> None:
        """Begin with none."""
        self._number = 0

    def count(self, num_drafting: int, num_rows: int) -> None:
        """Record how many rows draft in a round."""
        is_idle = _FEW * num_drafting <= num_rows
        self._number = self._number + 1 if is_idle else 0

    def rest(self) -> None:
        """Take drafts to be rare from now on."""
        self._number = _IDLE_ROUNDS

    def begin(self) -> None:
        """Take drafts to be usual from now on."""
        self._number = 0

    @property
    def are_many(self) -> bool:
        """Whether drafts are rare now."""
        return self._number >= _IDLE_ROUNDS
