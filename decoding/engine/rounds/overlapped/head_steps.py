"""Steps of a head on the device: of an EAGLE-3 or P-EAGLE head, which reads pairs, and of one that fills in blocks.

A pair is a feature and the token behind it. A round leaves pairs of what it has committed on the device, and the first
step of the next one reads all that a row lacks: so a round without a draft reads, too. The last pairs of each slot are
kept in a ring, pair p at place p modulo its size. It holds those of two rounds: if the younger one is dropped, the
pairs of the older one are still there. A P-EAGLE head reads masks behind a row's last pair in the same forward.

A head that fills in blocks (DFlash, DSpark) needs no ring: the keys and values of a feature follow from it alone, and
the round that computes it stores them. The chance that a token is accepted, which some heads state, shortens no draft
here: the target reads as many tokens as the host has planned.

Shapes: B rows (row b is in slot b), T tokens of each, N tokens in all, W pairs that a row may lack, with masks behind
them, J positions of a round, K drafted tokens, V vocabulary, S slots, R places of a ring, H hidden size.
"""

from collections.abc import Sequence as Seq
from functools import partial
from typing import Any

import torch

from decoding.cache.plan import Plan
from decoding.device import to_device
from decoding.drafters.block_drafter import DFlashDrafter
from decoding.drafters.head_drafters import Eagle3Drafter
from decoding.drafters.model import ModelDrafter
from decoding.drafters.stepwise import HeadDrafter
from decoding.engine.rounds.overlapped.inputs import rounded_width
from decoding.engine.rounds.overlapped.steps import DraftSteps, Logits, ModelSteps, RowsNow, plan_of_rows
from decoding.fused.recordings import power_of_two
from decoding.heads.dflash_head import Block
from decoding.sampling.verdicts import RowVerdict
from decoding.sequence import Sequence


class HeadSteps(DraftSteps):
    """Steps of an EAGLE-3 head, or the only one of a P-EAGLE head."""

    reads_always = True

    def __init__(self, drafter: Eagle3Drafter, num_slots: int, most_drafted: int) -> None:
        """Make rings for rows that draft up to `most_drafted` tokens."""
        super().__init__(drafter)
        self._drafter, self._head = drafter, drafter.head
        self.most = self._head.block_tokens or self.most
        device, self._width = self._head.device, most_drafted + 1
        self._size = power_of_two(2 * (rounded_width(most_drafted) + 1))
        # In a spare slot, the last one, is what is left of rows that take no part.
        self._lines_SRH = torch.zeros(
            num_slots + 1, self._size, self._head.hidden_size, dtype=self._head.dtype, device=device
        )
        self._tokens_SR = torch.zeros(num_slots + 1, self._size, dtype=torch.int64, device=device)
        self._num_read_S = torch.zeros(num_slots, dtype=torch.int64, device=device)

    def first(self, rows: RowsNow, num_visible: int, num_wanted: int) -> Logits:
        """Read W pairs of each row: what stands behind its last one is overwritten before anything sees it."""
        num_masks = max(0, num_wanted - 1) if self._head.block_tokens else 0
        num_rows, index_W = len(rows.lengths_B), torch.arange(self._width + num_masks, device=rows.lengths_B.device)
        starts_B = self._num_read_S[:num_rows]
        last_B = (rows.lengths_B - 2 - starts_B).clamp(0, self._width - 1)
        positions_BW = starts_B[:, None] + index_W
        at_BW = positions_BW % self._size
        tokens_BW = self._tokens_SR[:num_rows].gather(1, at_BW)
        lines_BWH = self._lines_SRH[rows.index_B[:, None], at_BW]
        is_pair_BW = index_W <= last_B[:, None]
        if num_masks:
            tokens_BW = torch.where(is_pair_BW, tokens_BW, self._head.mask_token_id)
        behind = self._head.mask_1H if num_masks else 0  # what is in the ring may be no number
        lines_BWH = torch.where(is_pair_BW[..., None], lines_BWH, behind)
        states_BWH = self._read(rows, tokens_BW, lines_BWH, positions_BW, num_visible, num_wanted > 0)
        starts_B.copy_(torch.where(rows.is_active_B, rows.lengths_B - 1, starts_B))
        if not num_masks:
            return self._head.logits(states_BWH[rows.index_B, last_B]) if num_wanted else (states_BWH, None)
        states_BKH = states_BWH[rows.index_B[:, None], last_B[:, None] + index_W[:num_wanted]]
        logits_BKV = self._head.logits(states_BKH.flatten(0, 1))[0].view(num_rows, num_wanted, -1)
        return logits_BKV[:, :1], logits_BKV

    def next(self, rows: RowsNow, tokens_B1: torch.Tensor, before: Logits, step: int, num_visible: int) -> Logits:
        if self._head.block_tokens:
            return before[1][:, step : step + 1], before[1]
        states_BH, positions_B1 = before[1], (rows.lengths_B + step - 2)[:, None]
        states_B1H = self._read(rows, tokens_B1, states_BH[:, None], positions_B1, num_visible, is_wanted=True)
        return self._head.logits(states_B1H[:, 0])

    def _read(
        self,
        rows: RowsNow,
        tokens_BT: torch.Tensor,
        lines_BTH: torch.Tensor,
        positions_BT: torch.Tensor,
        num_visible: int,
        is_wanted: bool,
    ) -> torch.Tensor:
        plan = plan_of_rows(self.slots.cache, rows, positions_BT, num_visible)
        states_NH = self._head.read_planned(tokens_BT.flatten(), lines_BTH.flatten(0, 1), plan, is_wanted=is_wanted)
        return states_NH.view(lines_BTH.shape)

    def keep_features(self, rows: RowsNow, features_BJH: torch.Tensor) -> None:
        self._lines_SRH[self._places(rows, features_BJH.shape[1])] = features_BJH

    def keep_tokens(self, rows: RowsNow, written_BJ: torch.Tensor) -> None:
        self._tokens_SR[self._places(rows, written_BJ.shape[1])] = written_BJ

    def _places(self, rows: RowsNow, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where the pairs of a round stand: their slots [B, 1] and their places of the ring [B, J]."""
        index_J = torch.arange(num_positions, device=rows.lengths_B.device)
        at_BJ = (rows.lengths_B[:, None] - 1 + index_J) % self._size
        return torch.where(rows.is_active_B, rows.index_B, len(self._num_read_S))[:, None], at_BJ

    def levels(
        self, rows: Seq[Sequence], is_known: Seq[bool], were_level: Seq[bool] | None, is_drafted: bool
    ) -> list[bool]:
        """Tell which rows have all their pairs, and bring the last one of those that the device does not know there."""
        fresh, first = list[tuple[int, Sequence]](), dict[int, int]()  # by slot: the pair that is read next
        for slot, (row, known) in enumerate(zip(rows, is_known, strict=True)):
            if not known and (left := self._drafter.first_left(slot, row)) is not None:
                first[slot] = left
            elif not known:
                fresh.append((slot, row))
        levels = [*(were_level or ()), *[False] * len(rows)][: len(rows)]
        for slot in first:
            levels[slot] = True
        if fresh:
            are_level, lines_NH = self._drafter.read_up(fresh)
            for (slot, _), is_level in zip(fresh, are_level, strict=True):
                levels[slot] = is_level
            numbers = [(slot, max(len(row) - 2, 0), row.newest_token) for slot, row in fresh]
            slots_N, places_N, tokens_N = to_device(numbers, self._head.device, torch.int64).T
            self._lines_SRH[slots_N, places_N % self._size] = lines_NH
            self._tokens_SR[slots_N, places_N % self._size] = tokens_N
            first |= {slot: place for slot, place, _ in numbers}
        if first:
            slots_N, first_N = to_device(list(first.items()), self._head.device, torch.int64).T
            self._num_read_S[slots_N] = first_N
        return levels

    def take_back(self, slot: int) -> None:
        self._drafter.take_left(slot)

    def note(self, slot: int, place: int, row: Sequence, verdict: RowVerdict, num_drafted: int) -> None:
        start, end = len(row) - 1, len(row) + verdict.num_accepted
        self._drafter.leave(slot, start, end, partial(self._left, place, start, end), in_place=slot == place)

    def _left(self, place: int, start: int, end: int) -> torch.Tensor:
        at_N = torch.arange(start, end, device=self._head.device) % self._size
        return self._lines_SRH[place, at_N]


class BlockSteps(DraftSteps):
    """The block of a DFlash head, and the picks of its tokens, one after another."""

    def __init__(self, drafter: DFlashDrafter) -> None:
        super().__init__(drafter)
        self._head, self.most = drafter.head, drafter.head.block_tokens

    def first(self, rows: RowsNow, num_visible: int, num_wanted: int) -> Logits:
        """Fill in the block behind each row's newest token."""
        plan, newest_B = self._plan(rows, self._head.block_size, num_visible), rows.newest_BW[:, -1]
        return self._logits(self._head.fill_in_planned(newest_B, plan, num_wanted), 0, newest_B)

    def next(self, rows: RowsNow, tokens_B1: torch.Tensor, before: Logits, step: int, num_visible: int) -> Logits:
        return self._logits(before[1], step, tokens_B1[:, 0])

    def _logits(self, block: Block, step: int, before_B: torch.Tensor) -> Logits:
        logits_B1V, _, block = self._head.next_logits(block, step, before_B)
        return logits_B1V, block

    def keep_features(self, rows: RowsNow, features_BJH: torch.Tensor) -> None:
        """Store keys and values: those of rejected tokens are overwritten before a block sees their positions."""
        self._head.insert_planned(features_BJH.flatten(0, 1), self._plan(rows, features_BJH.shape[1], 0))

    def _plan(self, rows: RowsNow, width: int, num_visible: int) -> Plan:
        """Return the plan of as many positions of each row, from its newest token on."""
        positions_BT = rows.lengths_B[:, None] - 1 + torch.arange(width, device=rows.lengths_B.device)
        return plan_of_rows(self.slots.cache, rows, positions_BT, num_visible + width)

    def levels(
        self, rows: Seq[Sequence], is_known: Seq[bool], were_level: Seq[bool] | None, is_drafted: bool
    ) -> list[bool]:
        """Tell which rows have the features of all tokens but the newest one, as each round leaves them."""
        levels = []
        for slot, (row, known) in enumerate(zip(rows, is_known, strict=True)):
            if known and were_level is not None:
                levels.append(were_level[slot])
            else:
                self.slots.roll_back(slot, len(row) - 1)
                levels.append(self.slots.num_known[slot] == len(row) - 1)
        return levels

    def note(self, slot: int, place: int, row: Sequence, verdict: RowVerdict, num_drafted: int) -> None:
        self.slots.num_known[slot] = len(row) + verdict.num_accepted


def steps_of(drafter: ModelDrafter | HeadDrafter[Any] | None, num_slots: int, most_drafted: int) -> DraftSteps | None:
    """Return the steps of a drafter over its present cache; None without one."""
    match drafter:
        case Eagle3Drafter():
            return HeadSteps(drafter, num_slots, most_drafted)
        case DFlashDrafter():
            return BlockSteps(drafter)
        case ModelDrafter():
            return ModelSteps(drafter)
    return None
