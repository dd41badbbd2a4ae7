"""DFlashDrafter: drafts with a DFlash or DSpark head, which reads the target's features and no tokens with them.

DFlash fills in a block of tokens in one forward. The keys and values of a feature go into the head's cache at once:
they need nothing else, neither the next token nor a forward of the head. What belongs to a rejected token is
overwritten when the target reads another one at its position, and no block sees it before that. So of a row of L tokens
the head has positions 0, ..., L - 2, whether the row drafts or not.

The tokens of a block are picked one after another from its logits. A DSpark head biases each by the token before, and
states the chance that it is accepted without a look at the token itself: where the chance that a token is accepted
with all before it no longer pays, the row's draft ends (`rows.min_survival`). The schedule has decided on the first
token by what was accepted so far, so that one is always drafted.

Shapes: N tokens or rows of a step, S slots, V vocabulary of the target, H hidden size of the head.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.device import to_device
from decoding.drafters.stepwise import HeadDrafter, lines_of
from decoding.heads.dflash_head import Block, DFlashHead
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft


class DFlashDrafter(HeadDrafter[DFlashHead]):
    """Drafts with a head, in a slot cache that mirrors the target's."""

    def __init__(self, head: DFlashHead, num_slots: int, max_model_len: int) -> None:
        super().__init__(head, num_slots, max_model_len)
        self._block: tuple[list[int], Block] | None = None  # of this round, and the slots of its lines
        self._num_wanted, self._min_survival = 0, 0.0
        self._survival_S = torch.ones(num_slots, device=head.device)  # chance of a row's draft, up to the last token
        self._num_paying_S = torch.zeros(num_slots, dtype=torch.int64, device=head.device)

    def receive(self, slots: Seq[int], starts: Seq[int], lengths: Seq[int], _: object, lines_NH: torch.Tensor) -> None:
        """Store the keys and values of a forward's tokens."""
        self.head.insert(lines_NH, starts, lengths, slots)
        for slot, start, length in zip(slots, starts, lengths, strict=True):
            if start <= self.slots.num_known[slot]:  # behind a gap a row drafts no more
                self.slots.num_known[slot] = start + length

    def num_copyable(self, slot: int, num_shared: int) -> int:
        return min(num_shared, self.slots.num_known[slot])

    def propose(self, rows: Rows) -> Draft:
        """Draft tokens, of which a row keeps those that pay by the head's own word; the target reads no others."""
        self._min_survival = rows.min_survival
        draft = super().propose(rows)
        if not (self.head.says_chances and self._min_survival and self._num_wanted):
            return draft
        num_paying = self._num_paying_S[: len(rows.sequences)].tolist()
        bounds = tuple(map(min, draft.max_draft_tokens_B, num_paying))
        width = max(bounds)
        return Draft(
            draft.token_ids_BK[:, :width],
            torch.minimum(draft.num_draft_tokens_B, to_device(bounds, self.head.device)),
            None if draft.probs_BKV is None else draft.probs_BKV[:, :width],
            max_draft_tokens_B=bounds,
        )

    def _limits(self, rows: Rows) -> list[int]:
        """Return how many tokens each row may draft; one whose features have a gap drafts none."""
        limits = [min(limit, self.head.block_tokens) for limit in super()._limits(rows)]
        for slot, sequence in enumerate(rows.sequences):
            self.slots.roll_back(slot, len(sequence) - 1)
            limits[slot] = limits[slot] if self.slots.num_known[slot] == len(sequence) - 1 else 0
        self._block, self._num_wanted = None, max(limits)
        return limits

    def _first_logits(self, part: Rows, slots: list[int], drafting: set[int]) -> torch.Tensor:
        starts = [len(row) - 1 for row in part.sequences]
        newest_N = to_device([row.newest_token for row in part.sequences], self.head.device)
        self._block = slots, self.head.fill_in(newest_N, starts, slots, self._num_wanted)
        self._survival_S.fill_(1.0)
        self._num_paying_S.zero_()
        return self._logits(0, slots, newest_N)

    def _next_logits(self, step: int, slots: list[int], drafting: set[int], newest_N: torch.Tensor) -> torch.Tensor:
        assert self._block is not None
        before, block = self._block
        tensors = block.states_NKH, block.logits_NKD, block.carried_NR
        self._block = slots, Block(*(lines_of(slots, before, each) for each in tensors))
        return self._logits(step, slots, newest_N)

    def _logits(self, step: int, slots: list[int], newest_N: torch.Tensor) -> torch.Tensor:
        """Return logits at a place of the blocks, behind these tokens, and note whose tokens there pay."""
        assert self._block is not None
        logits_N1V, chances_N, block = self.head.next_logits(self._block[1], step, newest_N)
        self._block = slots, block
        if chances_N is not None:
            index_N = to_device(slots, self.head.device)
            survival_N = self._survival_S[index_N] * chances_N
            self._survival_S[index_N] = survival_N
            pays_N = survival_N >= self._min_survival if step else torch.ones_like(survival_N, dtype=torch.bool)
            self._num_paying_S[index_N] += pays_N
        return logits_N1V
