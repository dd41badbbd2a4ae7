"""Lookup among the n-grams of a row's own text.

This is prompt lookup (Saxena, https://github.com/apoorvumang/prompt-lookup-decoding), over prompt and output:
it proposes what followed the last few tokens the last time they occurred. The longest matching n-gram wins, then the
most recent occurrence. A match that reaches the end of the text continues with its own proposal, so that a text in a
loop is continued to the full length.
"""

from collections.abc import Sequence as Seq
from itertools import accumulate
from operator import mul

from decoding.drafters.base import allowed_part, swap_entries
from decoding.drafters.lookups.known_texts import Calibration
from decoding.drafters.lookups.offers import LookupDrafter, Offer, better
from decoding.sampling.rows import Rows
from decoding.sequence import Sequence

_NGRAM_SIZES = (4, 3, 2)  # of the n-grams that are looked up, in this order
_FIRST_GUESS = 0.5  # the assumed chance of acceptance before any token was tried


class NGramDrafter(LookupDrafter):
    """Proposes point masses from an index of each row's own n-grams; no model, no memory to speak of."""

    def __init__(self) -> None:
        super().__init__()
        self._indexes: dict[int, _NGramIndex] = {}
        self._calibration = Calibration()  # by the size of the n-gram that matched
        self._offered: list[Offer] = []  # to this round's rows

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        super().admit(slots, sequences)
        self._indexes.update((slot, _NGramIndex()) for slot in slots)

    def observe(self, rows: Rows, num_drafted: Seq[int], num_accepted: Seq[int]) -> None:
        for offer, drafted, accepted in zip(self._offered, num_drafted, num_accepted, strict=True):
            self._calibration.observe(offer.kinds[:drafted], accepted)

    def swap(self, first: int, second: int) -> None:
        super().swap(first, second)
        swap_entries(self._indexes, first, second)

    def _offers(self, rows: Rows) -> list[Offer]:
        self._offered = []
        for slot, (sequence, limit) in enumerate(zip(rows.sequences, rows.num_draft_tokens, strict=True)):
            predicted = self._predicted(slot, sequence, limit, self._calibration)
            tokens, size = self._indexes[slot].lookup(sequence.token_ids, limit) if limit else ([], 0)
            tokens = allowed_part(sequence, tokens)
            rate = self._calibration.rate(size, _FIRST_GUESS)
            survival = list(accumulate([rate] * len(tokens), mul))
            self._offered.append(better(predicted, Offer(tokens, [size] * len(tokens), survival)))
        return self._offered


class _NGramIndex:
    """The most recent end of each n-gram of a growing token list, except its newest n-gram."""

    def __init__(self) -> None:
        self._end_of: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def lookup(self, token_ids: list[int], limit: int) -> tuple[list[int], int]:
        """Return what followed the newest n-gram, and the size of the n-gram; 0 if none matched."""
        for end in range(self._num_indexed + 1, len(token_ids)):
            for size in _NGRAM_SIZES:
                if size <= end:
                    self._end_of[tuple(token_ids[end - size : end])] = end
        self._num_indexed = max(len(token_ids) - 1, 0)
        for size in _NGRAM_SIZES:
            end_of_match = self._end_of.get(tuple(token_ids[-size:])) if size < len(token_ids) else None
            if end_of_match is not None:
                period = token_ids[end_of_match:]
                return (period * -(-limit // len(period)))[:limit], size
        return [], 0
