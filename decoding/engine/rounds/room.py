"""Room: memory for the rows in slots, where keys and values have pages that rows get as they grow.

If no page is free, rows that have finished give theirs back, and then the youngest rows give way: they wait in front of
all others with the tokens that they have, and are read again. The oldest row never does, and the pages are enough for
it, so something always goes on. No text depends on it.
"""

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from typing import Protocol

from decoding.cache.pages import PAGE
from decoding.drafters.base import Drafter
from decoding.engine.rounds.prefix import Resident
from decoding.network.target import Target
from decoding.sequence import Sequence


class _Owner(Protocol):
    @property
    def is_paged(self) -> bool: ...
    def reserve(self, slot: int, first: int, end: int) -> bool: ...


class Room:
    """The slots, the rows in them and those that wait, and the memory that target and drafter have for them."""

    def __init__(
        self, target: Target, drafter: Drafter, num_slots: int, waiting: deque[Sequence], num_ahead: int
    ) -> None:
        """Begin with empty slots; several lanes may share `waiting`.

        Rounds write at most `num_ahead` tokens behind those of a row that are known here, before `grow` comes again.
        """
        self._target, self._drafter, self._num_ahead = target, drafter, num_ahead
        self.residents: list[Resident | None] = [None] * num_slots
        self.waiting = waiting
        self._has_given_way = False

    def take_given_way(self) -> bool:
        """Tell whether a row that took part in rounds has given way since the last call."""
        given_way, self._has_given_way = self._has_given_way, False
        return given_way

    def begin(self, slot: int, newcomer: Resident, first: int, owner: _Owner) -> bool:
        """Reserve what a newcomer in a slot needs, of which it shares the `first` positions; False if that is not free.

        Rows that came before it do not give way.
        """
        if not self._has_pages:
            return True
        end = -(-(len(newcomer.sequence) + self._num_ahead) // PAGE) * PAGE
        newcomer.num_reserved = end
        has_room, others = owner.reserve(slot, first, end), self._others(slot, newcomer.number)
        while not has_room and (other := next(others, None)) is not None:
            self.empty(other)
            has_room = owner.reserve(slot, first, end)
        return has_room

    def grow(self) -> None:
        """Reserve what the rows need in the next rounds."""
        if not self._has_pages:
            return
        for slot, resident in enumerate(self.residents):
            if resident is None or resident.leader is not None or resident.sequence.is_finished:
                continue
            if len(resident.sequence) + self._num_ahead > resident.num_reserved:
                written = resident.num_filled if resident.is_filling else len(resident.sequence) - 1
                if not all(self.begin(slot, resident, written, owner) for owner in self._owners):
                    self.empty(slot)

    def give_way(self) -> None:
        """Let the youngest row give way, after all that has finished, because a forward found no free page."""
        num_waiting = len(self.waiting)
        for other in [*self._others(-1, -1)]:
            if len(self.waiting) == num_waiting:
                self.empty(other)

    def empty(self, slot: int) -> None:
        """Take all back that a slot holds. A row that is in flight waits in front of the others."""
        resident, self.residents[slot] = self.residents[slot], None
        for owner in self._owners:
            owner.reserve(slot, 0, 0)
        if resident is not None and not resident.sequence.is_finished:
            self.waiting.appendleft(resident.sequence)
            self._has_given_way |= resident.is_admitted

    @cached_property
    def _has_pages(self) -> bool:
        return any(owner.is_paged for owner in self._owners)

    @property
    def _owners(self) -> tuple[_Owner, _Owner]:
        assert self._target.cache is not None, "the target's slots are allocated"
        return self._target.cache, self._drafter

    def _others(self, slot: int, number: int) -> Iterator[int]:
        """Yield the slots whose memory a row of that number may have: unused, finished, and the youngest ones first."""
        others = [(other, r) for other, r in enumerate(self.residents) if other != slot]
        yield from [other for other, r in others if r is None]
        seated = sorted(((r.number, other, r) for other, r in others if r is not None), key=lambda each: each[0])
        yield from [other for _, other, r in seated if r.sequence.is_finished]
        for their_number, other, r in reversed(seated):
            if their_number > number and not r.sequence.is_finished and r.leader is None:
                yield other
