"""StateBook: which states of a row are kept. A state is what a recurrent layer has made of a row's first tokens.

Keys and values of any first tokens can be read at any time; a state can only be read at the lengths at which it was
kept. The book has for each slot some entries for recent lengths, which every verified token takes in turn, and a few
for lengths that other rows may begin with: the ends of what was read at once. A row is rolled back by a forward that
starts at an earlier length: it uses the state of that length, and the states behind it are forgotten.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

_RECENT_STATES = 8  # of each slot, at least
NUM_SHARED_ENTRIES = 4  # of each slot: states for rows that begin alike


def num_recent_states(num_draft_tokens: int) -> int:
    """Return how many recent states a slot keeps where a row drafts up to `num_draft_tokens` in a round.

    A forward that verifies them goes on from a state, and leaves one behind each of them and of the token before.
    """
    return max(_RECENT_STATES, num_draft_tokens + 2)


class Extension(NamedTuple):
    """The entries that a forward uses of one row."""

    read: int | None  # the state that it goes on from; None: it begins with no token
    written: list[int | None]  # where the state behind each of its tokens goes; None: it is not kept


@dataclass
class _Slot:
    place: int  # where its entries are
    recent: dict[int, int] = field(default_factory=dict)  # the entry of each length
    shared: dict[int, int] = field(default_factory=dict)


class StateBook:
    """The entries of all slots. An entry's number holds for all layers."""

    def __init__(self, num_slots: int, num_recent: int) -> None:
        """Begin without a state. A forward over more than `num_recent - 1` tokens, all kept, makes the book grow."""
        self.num_slots = num_slots
        self._num_recent = num_recent
        self._slots = [_Slot(place) for place in range(num_slots)]

    @property
    def num_entries(self) -> int:
        """Entries of all slots together. The entries of a kind that a slot has lie `num_slots` apart."""
        return self.num_slots * (NUM_SHARED_ENTRIES + self._num_recent)

    def lengths(self, slot: int) -> list[int]:
        """Return the lengths at which a slot's states are kept, in order, without 0, which needs no state."""
        kept = self._slots[slot]
        return sorted({*kept.recent, *kept.shared})

    def longest(self, slot: int, length: int) -> int:
        """Return the longest of these lengths up to `length`, from which a row can go on; 0 if there is none."""
        return max((each for each in self.lengths(slot) if each <= length), default=0)

    def extend(self, slot: int, start: int, num_tokens: int, *, keeps_each: bool) -> Extension:
        """Plan a forward over tokens of one row from `start` tokens on; what was kept behind them is forgotten.

        The state behind the last token is kept, for rows that begin alike, or with `keeps_each` behind every token.
        """
        kept = self._slots[slot]
        read = kept.recent.get(start, kept.shared.get(start))
        assert start == 0 or read is not None, f"no state is kept behind {start} tokens of slot {slot}"
        self.roll_back(slot, start)
        if keeps_each:
            self._num_recent = max(self._num_recent, num_tokens + 1)
            return Extension(read, [self._take_recent(kept, start + n + 1, start) for n in range(num_tokens)])
        entry = self._take_shared(kept, start + num_tokens, start)
        return Extension(read, [*[None] * (num_tokens - 1), entry])

    def roll_back(self, slot: int, length: int) -> None:
        """Forget what is kept of a slot behind `length` tokens."""
        for entries in (self._slots[slot].recent, self._slots[slot].shared):
            for behind in [each for each in entries if each > length]:
                del entries[behind]

    def copy(self, source: int, target: int, length: int) -> tuple[int, int] | None:
        """Let slot `target` have the first `length` tokens of slot `source`; return the entry to copy, and to which."""
        kept, copied = self._slots[source], self._slots[target]
        copied.recent.clear()
        copied.shared.clear()
        if not length:
            return None
        entry = kept.shared.get(length, kept.recent.get(length))
        assert entry is not None, f"no state is kept behind {length} tokens of slot {source}"
        return entry, self._take_shared(copied, length, 0)

    def swap(self, first: int, second: int) -> None:
        """Let two slots change places. Nothing is copied."""
        self._slots[first], self._slots[second] = self._slots[second], self._slots[first]

    def forget(self, slot: int) -> None:
        """Keep no state of a slot."""
        self._slots[slot].recent.clear()
        self._slots[slot].shared.clear()

    def pretend(self, slot: int, length: int) -> None:
        """Let a slot have a state behind `length` tokens, with any numbers, for a forward that is only timed."""
        self.forget(slot)
        if length:
            self._take_shared(self._slots[slot], length, 0)

    def entry(self, slot: int, length: int) -> int:
        """Return the entry of the state behind `length` tokens, which is kept."""
        kept = self._slots[slot]
        return kept.recent[length] if length in kept.recent else kept.shared[length]

    def _take_recent(self, kept: _Slot, length: int, start: int) -> int:
        """Take an entry for a length: one that is free, or the one of the shortest length that is not needed now."""
        numbers = self._numbers(kept, range(NUM_SHARED_ENTRIES, NUM_SHARED_ENTRIES + self._num_recent))
        entry = _free(numbers, kept.recent)
        if entry is None:
            entry = kept.recent.pop(min(each for each in kept.recent if each != start))
        kept.recent[length] = entry
        return entry

    def _take_shared(self, kept: _Slot, length: int, start: int) -> int:
        """Take an entry for a length; if none is free, that of the length which lies closest behind another one.

        So few entries are spread over a long text.
        """
        entry = _free(self._numbers(kept, range(NUM_SHARED_ENTRIES)), kept.shared)
        if entry is None:
            lengths = sorted(kept.shared)
            gaps = {each: each - before for before, each in zip([0, *lengths], lengths, strict=False) if each != start}
            entry = kept.shared.pop(min(gaps, key=lambda each: gaps[each]))
        kept.shared[length] = entry
        return entry

    def _numbers(self, kept: _Slot, kinds: Seq[int]) -> Iterator[int]:
        return (kind * self.num_slots + kept.place for kind in kinds)


def _free(numbers: Iterator[int], taken: dict[int, int]) -> int | None:
    used = set(taken.values())
    return next((number for number in numbers if number not in used), None)
