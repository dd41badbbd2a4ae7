"""IdSet: a set of unit ids that stays small, one bit an id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

_IDS_PER_PAGE = 1 << 16


class IdSet(Set[int]):
    """A growing set of numbers from 0 on, which may lie far apart: 8 KB for each stretch of 65,536 ids in use.

    Equal to a set of the same numbers. Travels to other processes as it is.
    """

    def __init__(self, ids: Iterable[int] = ()) -> None:
        """The set of `ids`."""
        self._pages: dict[int, bytearray] = {}
        self._size = 0
        for id_ in ids:
            self.add(id_)

    def add(self, id_: int) -> bool:
        """Put it in; whether it was not there before."""
        page, place = divmod(id_, _IDS_PER_PAGE)
        bits = self._pages.setdefault(page, bytearray(_IDS_PER_PAGE // 8))
        bit = 1 << (place % 8)
        if bits[place // 8] & bit:
            return False
        bits[place // 8] |= bit
        self._size += 1
        return True

    def __contains__(self, id_: object) -> bool:
        if not isinstance(id_, int):
            return False
        page, place = divmod(id_, _IDS_PER_PAGE)
        bits = self._pages.get(page)
        return bits is not None and bool(bits[place // 8] & 1 << (place % 8))

    def __iter__(self) -> Iterator[int]:
        """In rising order."""
        for page in sorted(self._pages):
            for byte, bits in enumerate(self._pages[page]):
                if bits:
                    yield from (page * _IDS_PER_PAGE + byte * 8 + k for k in range(8) if bits >> k & 1)

    def __len__(self) -> int:
        return self._size
