"""NGramDrafter: prompt lookup. It proposes what followed the last few tokens the last time they occurred.

Saxena, Prompt Lookup Decoding (https://github.com/apoorvumang/prompt-lookup-decoding), over prompt and output. The
longest matching n-gram wins, then the most recent occurrence. A match that reaches the end of the text continues with
its own proposal, so that a text in a loop is continued to the full length.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from decoding.drafters.base import Drafter, allowed_part, point_masses, swap_entries
from decoding.drafters.known_texts import Calibration
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft
from decoding.sequence import Sequence

_SIZES = (4, 3, 2)  # of the n-grams that are looked up, in this order
_FIRST_GUESS = 0.5  # the assumed chance of acceptance before any token was tried


@dataclass(frozen=True)
class Match:
    """What a lookup found for one row."""

    tokens: list[int]
    size: int  # of the n-gram that matched; 0 if none did


class NGramDrafter(Drafter):
    """Proposes point masses from an index of each row's own n-grams; no model, no memory to speak of."""

    def __init__(self) -> None:
        self._indexes: dict[int, _NGramIndex] = {}
        self._calibration = Calibration()
        self._sizes_matched: list[int] = []  # of this round's rows

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        self._indexes.update((slot, _NGramIndex()) for slot in slots)

    def lookup_survival(self, rows: Rows) -> list[list[float]]:
        """Estimate the chances from how often matches of the same size were right."""
        matches = self._matches(rows)
        rates = [self._calibration.rate(match.size, _FIRST_GUESS) for match in matches]
        return [list(accumulate([rate] * len(match.tokens), mul)) for match, rate in zip(matches, rates, strict=True)]

    def propose(self, rows: Rows) -> Draft:
        """Draft the tokens that followed the row's newest n-gram before; none if it is new."""
        matches = self._matches(rows)
        self._sizes_matched = [match.size for match in matches]
        return point_masses([match.tokens for match in matches], rows.sampling.keys_B.device)

    def observe(self, rows: Rows, num_drafted: Seq[int], num_accepted: Seq[int]) -> None:
        for size, drafted, accepted in zip(self._sizes_matched, num_drafted, num_accepted, strict=True):
            self._calibration.observe([size] * drafted, accepted)

    def swap(self, first: int, second: int) -> None:
        swap_entries(self._indexes, first, second)

    def _matches(self, rows: Rows) -> list[Match]:
        matches = [
            self._indexes[slot].lookup(sequence.token_ids, limit) if limit else Match([], 0)
            for slot, (sequence, limit) in enumerate(zip(rows.sequences, rows.num_draft_tokens, strict=True))
        ]
        if not rows.have_grammars:
            return matches
        return [
            Match(allowed_part(sequence, match.tokens), match.size)
            for sequence, match in zip(rows.sequences, matches, strict=True)
        ]


class _NGramIndex:
    """The most recent end of each n-gram of a growing token list, except its newest n-gram."""

    def __init__(self) -> None:
        self._end_of: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def lookup(self, token_ids: list[int], limit: int) -> Match:
        for end in range(self._num_indexed + 1, len(token_ids)):
            for size in _SIZES:
                if size <= end:
                    self._end_of[tuple(token_ids[end - size : end])] = end
        self._num_indexed = max(len(token_ids) - 1, 0)
        for size in _SIZES:
            end_of_match = self._end_of.get(tuple(token_ids[-size:])) if size < len(token_ids) else None
            if end_of_match is not None:
                period = token_ids[end_of_match:]
                return Match((period * -(-limit // len(period)))[:limit], size)
        return Match([], 0)
