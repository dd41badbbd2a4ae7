"""Known texts: what followed each context, how often, and how often that was right, apart for each scope.

A context is the last few tokens as one number (a hash: a collision costs a wrong guess, never a wrong text). Counts
are kept in two generations. New ones go into the younger. When it is full, the older one is dropped and the younger
takes its place, so that what did not occur for a whole generation is forgotten first.

All rows of a job have one scope; an endpoint has one for each API key. Where all scopes together hold too much, the one
that was used least recently is forgotten as a whole.
"""

from collections import OrderedDict
from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

_GUESS_WEIGHT = 4.0  # tokens that the guess counts for
_MEMORY = 512.0  # tokens after which the counts of a kind are halved, so that recent ones weigh more
_MAX_RATE = 0.99  # no estimate is higher: nothing is certain


class Calibration:
    """A running rate for each kind of match, starting from a guess."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, tuple[float, float]] = {}  # accepted, tried

    def rate(self, kind: Hashable, guess: float, most: float = _MAX_RATE) -> float:
        """Estimate the chance that a match's next token is accepted, given that those before it are; at most `most`."""
        accepted, tried = self._counts.get(kind, (0.0, 0.0))
        return min((accepted + guess * _GUESS_WEIGHT) / (tried + _GUESS_WEIGHT), most)

    def observe(self, kinds: Seq[Hashable], num_accepted: int) -> None:
        """Learn from a draft: the kinds of match that its tokens came from, and how many of them were accepted."""
        for index, kind in enumerate(kinds[: num_accepted + 1]):  # tokens behind a rejected one were never tried
            accepted, tried = self._counts.get(kind, (0.0, 0.0))
            if tried >= _MEMORY:
                accepted, tried = accepted / 2, tried / 2
            self._counts[kind] = (accepted + (index < num_accepted), tried + 1)


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


_MAX_ENTRIES_OF_ALL = 4 * MAX_ENTRIES  # counts of all scopes; at most about 140 MB


class KnownTexts:
    """What was learned of the texts of one scope."""

    def __init__(self) -> None:
        self.continuations = Continuations()
        self.calibration = Calibration()
        self.num_counted = 0  # entries, when they were last counted


class KnownByScope:
    """The known texts of each scope."""

    def __init__(self, max_entries: int = _MAX_ENTRIES_OF_ALL) -> None:
        """Keep at most `max_entries` counts, or those of one scope, which has a limit of its own."""
        self._max_entries, self._num_entries = max_entries, 0
        self._known = OrderedDict[str, KnownTexts]()  # the most recently used at the end

    def of(self, scope: str) -> KnownTexts:
        """Return what is known in a scope, which then counts as the most recently used."""
        known = self._known.get(scope)
        if known is None:
            known = self._known[scope] = KnownTexts()
        else:
            self._known.move_to_end(scope)
        return known

    def count(self, known: KnownTexts) -> None:
        """Count what the most recently used scope has learned, and forget others while there is too much of all."""
        num_entries = known.continuations.num_entries
        self._num_entries += num_entries - known.num_counted
        known.num_counted = num_entries
        while self._num_entries > self._max_entries and len(self._known) > 1:
            _, forgotten = self._known.popitem(last=False)
            self._num_entries -= forgotten.num_counted
