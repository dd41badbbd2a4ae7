"""NGramDrafter: prompt lookup. What followed the last few tokens the last time they occurred follows them again.

Saxena, Prompt Lookup Decoding (https://github.com/apoorvumang/prompt-lookup-decoding), over prompt and output. The
longest matching n-gram wins, then the most recent occurrence.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.rows import Rows
from decoding.sequence import Sequence
from decoding.verify import Draft

MAX_NGRAM = 4
MIN_NGRAM = 2


class NGramDrafter:
    """Proposes point masses from an index of each row's own n-grams; no model, no memory to speak of."""

    def __init__(self, max_ngram: int = MAX_NGRAM, min_ngram: int = MIN_NGRAM) -> None:
        """Look for matches of max_ngram tokens first, of min_ngram last."""
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._indexes: dict[int, _NGramIndex] = {}

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """The index starts with the first round."""

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        """Nothing to compute."""

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        """Start an index for each new sequence."""
        for slot, _ in zip(slots, sequences, strict=True):
            self._indexes[slot] = _NGramIndex(self._sizes)

    def propose(self, rows: Rows) -> Draft:
        """The tokens that followed the row's newest n-gram before; none where it is new."""
        proposals = [
            self._indexes[slot].lookup(sequence.token_ids, limit)
            for slot, (sequence, limit) in enumerate(zip(rows.sequences, rows.num_draft_tokens, strict=True))
        ]
        width = max(len(proposal) for proposal in proposals)
        device = rows.sampling.keys_B.device
        return Draft(
            torch.tensor([p + [0] * (width - len(p)) for p in proposals], dtype=torch.int64, device=device),
            torch.tensor([len(p) for p in proposals], device=device),
            most_B=tuple(len(p) for p in proposals),
        )

    def swap(self, first: int, second: int) -> None:
        """Exchange the indexes, where there are any."""
        indexes = {second: self._indexes.pop(first, None), first: self._indexes.pop(second, None)}
        self._indexes |= {slot: index for slot, index in indexes.items() if index is not None}

    def reset(self, slot: int) -> None:
        """Token ids are always finite."""


class _NGramIndex:
    """Where each n-gram of a growing token list ended most recently, the newest n-gram excepted."""

    def __init__(self, sizes: range) -> None:
        self._sizes = sizes
        self._end_of: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def lookup(self, token_ids: list[int], limit: int) -> list[int]:
        for end in range(self._num_indexed + 1, len(token_ids)):
            for size in self._sizes:
                if size <= end:
                    self._end_of[tuple(token_ids[end - size : end])] = end
        self._num_indexed = max(len(token_ids) - 1, 0)
        for size in self._sizes:
            end_of_match = self._end_of.get(tuple(token_ids[-size:])) if size < len(token_ids) else None
            if end_of_match is not None:
                return token_ids[end_of_match : end_of_match + limit]
        return []
