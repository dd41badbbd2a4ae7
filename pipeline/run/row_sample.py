"""RowSample: some rows of a run, spread evenly over its input, which every process can name without asking another."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

NUM_SAMPLED = 50


@dataclass(frozen=True)
class RowSample:
    """`num_wanted` of a run's `num_rows` rows, or all of them: one out of each of as many stretches of equal length.

    A row is named by its ordinal, its number among all input rows. Which one of a stretch is taken follows from a hash,
    so that an input in a regular order is not sampled by its period.
    """

    num_rows: int
    num_wanted: int

    def __contains__(self, ordinal: int) -> bool:
        """Tell whether the row is in the sample."""
        if self.num_wanted >= self.num_rows:
            return True
        if self.num_wanted <= 0:
            return False
        stretch = ((ordinal + 1) * self.num_wanted - 1) // self.num_rows
        return self._taken_of(stretch) == ordinal

    def __iter__(self) -> Iterator[int]:
        """Yield the ordinals of the sample, ascending."""
        if self.num_wanted >= self.num_rows:
            return iter(range(self.num_rows))
        return (self._taken_of(stretch) for stretch in range(self.num_wanted))

    def _taken_of(self, stretch: int) -> int:
        begin = stretch * self.num_rows // self.num_wanted
        end = (stretch + 1) * self.num_rows // self.num_wanted
        hashed = int.from_bytes(blake2b(str(stretch).encode(), digest_size=8).digest(), "big")
        return begin + hashed % (end - begin)


NO_ROWS = RowSample(1, 0)
