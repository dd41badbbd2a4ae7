"""Continuations: what followed each context, how often, in bounded memory.

A context is the last few tokens as one number (a hash: a collision costs a wrong guess, never a wrong text). Counts
are kept in two generations. New ones go into the younger. When it is full, the older one is dropped and the younger
takes its place, so that what did not occur for a whole generation is forgotten first.
"""

from dataclasses import dataclass, field

MAX_ENTRIES = 200_000  # counts in a generation; two of them take at most about 70 MB
_ONE = 1 << 32  # a context with a single continuation is one int: count * _ONE + token
_TOKEN = _ONE - 1


@dataclass(slots=True)
class _Several:
    """The counts of a context that was continued in more than one way."""

    counts: dict[int, int]
    total: int
    best: int  # the most frequent token; of equally frequent ones the latest


@dataclass(slots=True)
class _Generation:
    known: dict[int, "int | _Several"] = field(default_factory=dict)
    num_entries: int = 0
    writers: dict[int, int | None] = field(default_factory=dict)  # by noise key, the row that wrote; None: several


class Continuations:
    """The counts of (context, next token) pairs."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        """Keep between `max_entries` and twice as many counts."""
        self._max_entries = max_entries
        self._young, self._old = _Generation(), _Generation()

    @property
    def num_entries(self) -> int:
        """The number of counts."""
        return self._young.num_entries + self._old.num_entries

    def __contains__(self, context: int) -> bool:
        """Tell whether any token followed a context."""
        return context in self._young.known or context in self._old.known

    def add(self, context: int, token_id: int) -> None:
        """Count that `token_id` followed `context` once more."""
        young = self._young
        known = young.known.get(context)
        if known is None:
            young.known[context] = _ONE + token_id
            young.num_entries += 1
        elif isinstance(known, int):
            if known & _TOKEN == token_id:
                young.known[context] = known + _ONE
            else:
                count = known >> 32
                best = token_id if count == 1 else known & _TOKEN
                young.known[context] = _Several({known & _TOKEN: count, token_id: 1}, count + 1, best)
                young.num_entries += 1
        else:
            count = known.counts.get(token_id, 0) + 1
            young.num_entries += count == 1
            known.counts[token_id] = count
            known.total += 1
            if count >= known.counts[known.best]:
                known.best = token_id
        if young.num_entries >= self._max_entries:
            self._old, self._young = young, _Generation()

    def best(self, context: int) -> tuple[int, int, int] | None:
        """Return the most frequent next token, its count, and the count of all; None if no token ever followed."""
        young, old = self._young.known.get(context), self._old.known.get(context)
        if old is None:
            return None if young is None else _best(young)
        if young is None:
            return _best(old)
        (token, _, total), (other, _, other_total) = _best(young), _best(old)
        count, other_count = (_count(young, t) + _count(old, t) for t in (token, other))
        if other_count > count:
            token, count = other, other_count
        return token, count, total + other_total

    def sign(self, noise_key: int, writer: int) -> None:
        """Record that what is added now was written by `writer` with this noise."""
        writers = self._young.writers
        if writers.setdefault(noise_key, writer) != writer:
            writers[noise_key] = None

    def holds_another(self, noise_key: int, writer: int) -> bool:
        """Tell whether anything here was written with this noise by another row."""
        return any(g.writers.get(noise_key, writer) != writer for g in (self._young, self._old))


def _best(known: int | _Several) -> tuple[int, int, int]:
    if isinstance(known, int):
        return known & _TOKEN, known >> 32, known >> 32
    return known.best, known.counts[known.best], known.total


def _count(known: int | _Several, token_id: int) -> int:
    if isinstance(known, int):
        return known >> 32 if known & _TOKEN == token_id else 0
    return known.counts.get(token_id, 0)
