"""SlotMirror: which tokens stand in the slots of a session, so that they can be written again.

Only what is settled is in it: steps that all stages are known to have done.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from actors.stages.work import Change, Copy, Swap, Zero


class SlotMirror:
    """The token ids whose keys and values each slot holds, from its beginning."""

    def __init__(self, num_slots: int, num_positions: int) -> None:
        """Nothing stands anywhere."""
        self.num_positions = num_positions
        self._tokens: list[list[int]] = [[] for _ in range(num_slots)]

    @property
    def num_slots(self) -> int:
        """How many there are."""
        return len(self._tokens)

    def __getitem__(self, slot: int) -> Seq[int]:
        return self._tokens[slot]

    def lengths(self) -> list[int]:
        """How many tokens stand in each slot."""
        return [len(tokens) for tokens in self._tokens]

    def write(self, slot: int, start: int, token_ids: Seq[int]) -> None:
        """Tokens were written from `start` on; what stood behind them stood after other tokens, and counts no more."""
        tokens = self._tokens[slot]
        assert start <= len(tokens), "what stands before must stand"
        del tokens[start:]
        tokens.extend(token_ids)

    def clear(self, slot: int) -> None:
        """Nothing can be relied on in this slot."""
        self._tokens[slot] = []

    def clear_all(self) -> None:
        """Nothing can be relied on in any slot."""
        self._tokens = [[] for _ in self._tokens]

    def change(self, changes: Iterable[Change]) -> None:
        """What these changes make of the slots."""
        for change in changes:
            match change:
                case Copy():
                    self._tokens[change.target] = self._tokens[change.source][: change.length]
                case Swap():
                    first, second = self._tokens[change.first], self._tokens[change.second]
                    self._tokens[change.second] = first[: change.first_length] if change.first_length else second
                    self._tokens[change.first] = second[: change.second_length] if change.second_length else first
                case Zero():
                    self._tokens[change.slot] = []


def change_lengths(lengths: list[int], changes: Iterable[Change]) -> None:
    """The same for lengths alone, in place."""
    for change in changes:
        match change:
            case Copy():
                lengths[change.target] = min(lengths[change.source], change.length)
            case Swap():
                first, second = lengths[change.first], lengths[change.second]
                lengths[change.second] = min(first, change.first_length) if change.first_length else second
                lengths[change.first] = min(second, change.second_length) if change.second_length else first
            case Zero():
                lengths[change.slot] = 0
