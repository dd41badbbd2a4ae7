"""Pages: which pages the rows have, counted, so that rows which begin alike have some together.

This is the book; the keys and values are in `decoding/cache/paged_cache.py`.
"""

from collections.abc import Iterable

PAGE = 256  # positions: as many as the chunks of attention have, or a multiple


class NoPageError(RuntimeError):
    """No page is free for what a forward is to write: rows must give some back, and read their tokens again."""


class Pages:
    """Pages of `size` positions, numbered from 1. Several slots may have a page, at the same place of their rows."""

    def __init__(self, num_slots: int, num_pages: int, size: int) -> None:
        """Begin with all pages free."""
        self.size = size
        self._of_slots: list[list[int]] = [[] for _ in range(num_slots)]
        self._num_users = [0] * (1 + num_pages)
        self._free = list(range(num_pages, 0, -1))
        self.changed: set[int] = set()  # slots whose pages are others since this was emptied

    def __getitem__(self, slot: int) -> list[int]:
        """Return the pages of a slot, in the order of its positions."""
        return self._of_slots[slot]

    @property
    def num_free(self) -> int:
        return len(self._free)

    def reserve(self, slot: int, first: int, end: int) -> list[tuple[int, int]] | None:
        """Let a slot have pages for the positions before `end` and no others, and those from `first` on alone.

        Return each page that must be copied, and to which, because others have it and `first` is inside. Return None if
        too few pages are free; the slot then keeps what it has of them.
        """
        own, num_pages = self._of_slots[slot], -(-end // self.size)
        self._give_back(slot, num_pages)
        shared = [index for index in range(first // self.size, len(own)) if self._num_users[own[index]] > 1]
        if len(shared) + num_pages - len(own) > len(self._free):
            return None
        copies = []
        for index in shared:
            page, own[index] = own[index], self._take()
            self._num_users[page] -= 1
            if first >= index * self.size:  # else all of it is written anew
                copies.append((page, own[index]))
        if shared or len(own) < num_pages:
            self.changed.add(slot)
        own += [self._take() for _ in range(num_pages - len(own))]
        return copies

    def share(self, source: int, target: int, length: int) -> None:
        """Let slot `target` have the pages of the first `length` positions of slot `source`, and no others.

        Neither may write there: `reserve` comes before the target's next position is written.
        """
        pages = self._of_slots[source][: -(-length // self.size)]
        assert len(pages) * self.size >= length, "the source has what is shared"
        for page in pages:
            self._num_users[page] += 1
        self._give_back(target, 0)
        self._of_slots[target] = list(pages)
        self.changed.add(target)

    def swap(self, first: int, second: int) -> None:
        """Exchange the pages of two slots."""
        of = self._of_slots
        of[first], of[second] = of[second], of[first]
        self.changed.update((first, second))

    def _take(self) -> int:
        page = self._free.pop()
        self._num_users[page] = 1
        return page

    def _give_back(self, slot: int, num_kept: int) -> None:
        own = self._of_slots[slot]
        if len(own) > num_kept:
            self.changed.add(slot)
        for page in own[num_kept:]:
            self._num_users[page] -= 1
            if not self._num_users[page]:
                self._free.append(page)
        del own[num_kept:]


def num_pages_for(num_slots: int, num_positions: int, tokens_per_slot: int | None, size: int) -> int:
    """Return the pages of a cache for rows of this mean length (None: whole ones): enough for one whole row, too."""
    whole = -(-num_positions // size)
    if tokens_per_slot is None:
        return num_slots * whole
    return min(num_slots * whole, max(whole, num_slots, -(-num_slots * tokens_per_slot // size)))


def blocks_of(slots: Iterable[int], num_slots: int, size: int) -> list[slice]:
    """Return the blocks of `size` slots in which these are, each once."""
    blocks = sorted({slot // size for slot in slots})
    return [slice(block * size, min((block + 1) * size, num_slots)) for block in blocks]
