"""A set of unit ids that takes one bit for each id."""

from collections.abc import Iterable, Iterator, Set

_IDS_PER_PAGE = 1 << 16


class IdSet(Set[int]):
    """A set of numbers from 0 on, which may lie far apart: it takes 8 KB for each 65,536 ids in use."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._pages: dict[int, bytearray] = {}
        self._size = 0
        for id_ in ids:
            self.add(id_)

    def add(self, id_: int) -> bool:
        """Add an id; return False if it was in the set already."""
        page, index = divmod(id_, _IDS_PER_PAGE)
        bits = self._pages.setdefault(page, bytearray(_IDS_PER_PAGE // 8))
        bit = 1 << (index % 8)
        if bits[index // 8] & bit:
            return False
        bits[index // 8] |= bit
        self._size += 1
        return True

    def discard(self, id_: int) -> None:
        """Take an id out, if it is in the set."""
        if id_ in self:
            page, index = divmod(id_, _IDS_PER_PAGE)
            self._pages[page][index // 8] ^= 1 << (index % 8)
            self._size -= 1

    def __contains__(self, id_: object) -> bool:
        if not isinstance(id_, int):
            return False
        page, index = divmod(id_, _IDS_PER_PAGE)
        bits = self._pages.get(page)
        return bits is not None and bool(bits[index // 8] & 1 << (index % 8))

    def __iter__(self) -> Iterator[int]:
        """Yield the ids in rising order."""
        for page in sorted(self._pages):
            for byte, bits in enumerate(self._pages[page]):
                if bits:
                    yield from (page * _IDS_PER_PAGE + byte * 8 + k for k in range(8) if bits >> k & 1)

    def __len__(self) -> int:
        return self._size
