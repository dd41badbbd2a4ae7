"""StepwiseDrafter: drafting token by token, under the target's own sampling parameters. What computes logits differs.

Rows that have drafted enough leave the steps only when at most half of a step's rows still draft: a step over other
rows than the first slots must gather their keys and values, which does not pay for fewer.

Shapes: B rows, N of them in a step, K drafted tokens, V vocabulary of the target, S slots.
"""

from abc import abstractmethod
from collections.abc import Sequence as Seq
from typing import Generic, TypeVar

import torch

from decoding.cache.features import FeatureTap
from decoding.cache.kv_cache import KVCache
from decoding.device import to_device
from decoding.drafters.base import Drafter
from decoding.fused.live_weights import LiveWeights
from decoding.heads.slot_head import SlotHead
from decoding.network.language_model import LanguageModel
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft


class SlotBook:
    """The slots of a draft, which mirror the target's."""

    def __init__(self, draft: LanguageModel | SlotHead, num_slots: int) -> None:
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
        length = 0 if donor is None else cache.longest(donor, min(num_shared, self.num_known[donor]))
        if donor is not None and length:
            if cache.hides_unwritten:  # a copy that is not finite is a guess that is rejected
                is_finite_S[slot] = is_finite_S[donor]
            elif not (is_finite_S[donor] and cache.is_finite(donor, length)):
                length = 0
            if length and donor != slot:
                cache.copy(donor, slot, length)
        self.num_known[slot] = length

    def roll_back(self, slot: int, length: int) -> None:
        """Forget the slot from position `length` on, or from an earlier one: guesses, which may have been rejected."""
        self.num_known[slot] = self.cache.longest(slot, min(self.num_known[slot], length))

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


class StepwiseDrafter(Drafter):
    """Drafts a token of every row in each step, from logits over the target's ids."""

    has_model = True

    def __init__(self, draft: LanguageModel | SlotHead, num_slots: int, max_len: int, most_candidates: int = 0) -> None:
        """Draft for rows of up to `max_len` tokens with a model or head, whose cache is allocated behind this.

        Unless verification is coupled, a token is drawn from the `most_candidates` best ones (0: from all), and the
        stated distribution says so. That bounds the size of the distribution for a drafter that must send it to another
        process.
        """
        self.max_len, self._most_candidates = max_len, most_candidates
        self._draft, self.slots = draft, SlotBook(draft, num_slots)

    @property
    def weights(self) -> LiveWeights:
        return self._draft.weights

    @abstractmethod
    def _first_logits(self, part: Rows, slots: list[int], drafting: set[int]) -> torch.Tensor:
        """Return logits [N, 1, V] for the first drafted token of the rows in these slots, of which some draft.

        The logits of the other rows have no meaning.
        """

    @abstractmethod
    def _next_logits(self, step: int, slots: list[int], drafting: set[int], newest_N: torch.Tensor) -> torch.Tensor:
        """Return logits [N, 1, V] for drafted token `step`, after `newest_N`: those that the last step drafted."""

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """Copy the donor's prefix, as far as it is known and finite."""
        self.slots.begin(slot, donor, num_shared)

    def swap(self, first: int, second: int) -> None:
        """Exchange keys and values."""
        self.slots.swap(first, second)

    def reset(self, slot: int) -> None:
        """Clear the slot's keys and values."""
        self.slots.clear(slot)

    def _limits(self, rows: Rows) -> list[int]:
        """Return how many tokens each row may draft. Called in rounds without a draft, too."""
        return [
            max(0, min(limit, self.max_len - len(sequence)))
            for limit, sequence in zip(rows.num_draft_tokens, rows.sequences, strict=True)
        ]

    def propose(self, rows: Rows) -> Draft:
        """Draft tokens, and unless coupled state what each was drawn from; none for rows beyond the draft's context."""
        limits = self._limits(rows)
        keys_B, is_finite_S = rows.sampling.keys_B, self.slots.is_finite_S
        drafted_BK = keys_B.new_zeros(len(limits), max(limits))
        if not any(limits):
            return Draft(drafted_BK, torch.zeros_like(keys_B), max_draft_tokens_B=tuple(limits))
        num_finite_B = torch.zeros_like(keys_B)
        probs: list[torch.Tensor] = []
        stepping: list[int] = []
        can_go_on_B = torch.ones_like(keys_B, dtype=torch.bool)  # the draft may know no token that is allowed
        for step in range(max(limits)):
            still_drafting = [slot for slot, limit in enumerate(limits) if limit > step]
            if not stepping or 2 * len(still_drafting) <= len(stepping):
                # All slots up to the last that drafts, or only those that draft if they are at most half.
                in_place = list(range(still_drafting[-1] + 1))
                stepping = still_drafting if 2 * len(still_drafting) <= len(in_place) else in_place
                part, index_N = rows.take(stepping), to_device(stepping, keys_B.device)
            drafted_NK = drafted_BK[index_N]
            if step == 0:
                logits_N1V = self._first_logits(part, stepping, set(still_drafting))
            else:
                logits_N1V = self._next_logits(step, stepping, set(still_drafting), drafted_NK[:, step - 1])
            num_left = [limits[slot] - step for slot in stepping]
            drawn = rows.rule.draw(part, logits_N1V, drafted_NK[:, :step], num_left, self._most_candidates)
            if drawn.probs_NV is not None:
                probs_BV = drawn.probs_NV.new_zeros(len(limits), drawn.probs_NV.shape[1])
                probs.append(probs_BV.index_copy_(0, index_N, drawn.probs_NV))
            is_finite_N = drawn.is_finite_N & is_finite_S[index_N]
            if part.have_limits:
                is_finite_S[index_N] &= drawn.is_sound_N
                is_finite_N &= can_go_on_B[index_N]
                can_go_on_B[index_N] = is_finite_N
            else:
                is_finite_S[index_N] = is_finite_N
            num_finite_B.index_add_(0, index_N, is_finite_N.long())
            drafted_BK[index_N, step] = drawn.token_ids_N
        return Draft(
            drafted_BK,
            # Drop only tokens drawn after a value that is not finite: to drop a token because of itself would bias.
            torch.minimum(to_device(limits, keys_B.device), num_finite_B),
            torch.stack(probs, dim=1) if probs else None,
            max_draft_tokens_B=tuple(limits),
        )


def lines_of(slots: list[int], before: list[int], lines_NX: torch.Tensor) -> torch.Tensor:
    """Return the lines of a step's slots, of those that an earlier step had for its slots `before`.

    A row that does not draft may stand between those of this step and not of the earlier one: its line is zero.
    """
    if slots == before:
        return lines_NX
    at = {slot: line for line, slot in enumerate(before)}
    if not at.keys() >= set(slots):
        lines_NX = torch.cat([lines_NX, torch.zeros_like(lines_NX[:1])])
    return lines_NX[to_device([at.get(slot, len(before)) for slot in slots], lines_NX.device)]


_Head = TypeVar("_Head", bound=SlotHead)


class HeadDrafter(StepwiseDrafter, Generic[_Head]):
    """Drafts with a head, in a slot cache that mirrors the target's."""

    def __init__(self, head: _Head, num_slots: int, max_model_len: int) -> None:
        """Allocate the head's cache. The target must hand its features to `tap`."""
        super().__init__(head, num_slots, min(max_model_len, head.max_positions or max_model_len))
        self.head = head
        head.allocate(num_slots, max_model_len)

    @property
    def tap(self) -> FeatureTap:
        """What the target must hand out."""
        return FeatureTap(self.head.layer_ids, self.head.project, self.receive)

    @abstractmethod
    def receive(self, slots: Seq[int], starts: Seq[int], lengths: Seq[int], _: object, lines_NH: torch.Tensor) -> None:
        """Take the features of a forward, as `FeatureTap.receive` says."""
