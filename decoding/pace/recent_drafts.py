"""RecentDrafts: what a draft model drafted lately, and how much of it was accepted."""

from collections import deque

ROUNDS = 200  # with drafts, that are remembered


class RecentDrafts:
    """What the draft model drafted in the last rounds in which it drafted at all."""

    def __init__(self) -> None:
        """Begin with no round."""
        self._rounds: deque[tuple[int, int]] = deque(maxlen=ROUNDS)  # drafted, accepted

    def __len__(self) -> int:
        return len(self._rounds)

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from a round."""
        if num_drafted:
            self._rounds.append((num_drafted, num_accepted))

    def clear(self) -> None:
        """Forget all rounds."""
        self._rounds.clear()

    def totals(self) -> tuple[int, int]:
        """Return the tokens drafted and accepted in these rounds."""
        return sum(drafted for drafted, _ in self._rounds), sum(accepted for _, accepted in self._rounds)
