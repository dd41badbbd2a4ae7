"""Backlog: the sequences of batches in an engine that requests share with them. Requests come first."""

from collections import deque
from collections.abc import Iterable, Set
from itertools import islice

from decoding.sequence import Sequence


class Backlog:
    """Sequences that enter the engine only where slots are left over, in the order in which they came."""

    def __init__(self, num_reserved: int | None = None) -> None:
        """Leave `num_reserved` slots of the engine to others, a quarter unless given; one slot is taken in any case."""
        self._num_reserved = num_reserved
        self.waiting: deque[Sequence] = deque()
        self._inside: set[Sequence] = set()  # the engine

    def __len__(self) -> int:
        return len(self.waiting) + len(self._inside)

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue sequences."""
        self.waiting.extend(sequences)

    def take(self, num_slots: int, num_others: int) -> list[Sequence]:
        """Return the sequences to submit now to an engine with `num_slots`, where `num_others` run or wait."""
        num_reserved = num_slots // 4 if self._num_reserved is None else self._num_reserved
        most = min(max(1, num_slots - num_reserved), num_slots - num_others)
        taken = list(islice(self.waiting, max(0, most - len(self._inside))))
        for _ in taken:
            self.waiting.popleft()
        self._inside.update(taken)
        return taken

    def remove(self, sequences: Iterable[Sequence]) -> None:
        """Forget sequences that have left the engine."""
        self._inside.difference_update(sequences)

    def drop(self, sequences: Set[Sequence]) -> set[Sequence]:
        """Forget those of the sequences that wait here, and return them."""
        dropped = {sequence for sequence in self.waiting if sequence in sequences}
        if dropped:
            self.waiting = deque(sequence for sequence in self.waiting if sequence not in dropped)
        return dropped

    def clear(self) -> None:
        """Forget all sequences."""
        self.waiting.clear()
        self._inside.clear()
