"""SlotBook: how far the keys and values in the slots of a draft's cache are right, and which are finite.

Shapes: S slots.
"""

from typing import Protocol

import torch

from decoding.cache.kv_cache import KVCache


class Cached(Protocol):
    """A draft model or head."""

    device: torch.device
    cache: KVCache | None  # None before it is allocated


class SlotBook:
    """The slots of a draft, which mirror the target's."""

    def __init__(self, draft: Cached, num_slots: int) -> None:
        """Begin with slots in which nothing is known."""
        self._draft = draft
        self.num_known = [0] * num_slots  # of each slot: first positions that are written
        # From a row's newest token on they may be guesses, until `roll_back`.
        # A slot with a value that is not finite drafts nothing.
        self.is_finite_S = torch.ones(num_slots, dtype=torch.bool, device=draft.device)

    @property
    def cache(self) -> KVCache:
        """The draft's own keys and values."""
        assert self._draft.cache is not None, "allocate() comes first"
        return self._draft.cache

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """Make a slot fit for another row, which shares its first tokens with the one in slot `donor`.

        What is known of the donor is copied, or kept in the same slot, unless it is not finite: no such value stays
        where a row could meet it.
        """
        cache, is_finite_S = self.cache, self.is_finite_S
        if cache.hides_unwritten:  # and the device need not be asked
            is_finite_S[slot] = True
        elif not is_finite_S[slot]:
            self.clear(slot)
        length = 0 if donor is None else min(num_shared, self.num_known[donor])
        if donor is not None and length:
            if cache.hides_unwritten:  # a copy that is not finite is a guess that is rejected
                is_finite_S[slot] = is_finite_S[donor]
            elif not (is_finite_S[donor] and cache.is_finite(donor, length)):
                length = 0
            if length and donor != slot:
                cache.copy(donor, slot, length)
        self.num_known[slot] = length

    def roll_back(self, slot: int, length: int) -> None:
        """Forget the slot from position `length` on: guesses, which may have been rejected."""
        self.num_known[slot] = min(self.num_known[slot], length)

    def swap(self, first: int, second: int) -> None:
        """Exchange what is known of two slots: all positions if some are not finite, so that none of those stays."""
        cache, known, is_finite_S = self.cache, self.num_known, self.is_finite_S
        are_finite = cache.hides_unwritten or bool(is_finite_S[[first, second]].all())
        lengths = (known[first], known[second]) if are_finite else (cache.num_positions + 1,) * 2
        cache.swap(first, second, *lengths)
        known[first], known[second] = known[second], known[first]
        kept = is_finite_S[first].clone()
        is_finite_S[first] = is_finite_S[second]
        is_finite_S[second] = kept

    def clear(self, slot: int) -> None:
        """Clear a slot: a NaN in a masked position would spoil all later logits (0 * NaN)."""
        self.cache.zero(slot)
        self.num_known[slot] = 0
        self.is_finite_S[slot] = True

    def forget(self) -> None:
        """Forget what is known of all slots: other weights computed it."""
        self.num_known = [0] * len(self.num_known)
