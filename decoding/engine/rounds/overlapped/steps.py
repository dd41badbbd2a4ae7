"""Steps of a draft on the device: what computes the logits of each drafted token, of rows that only the device knows.

A draft model reads the two newest tokens of each row in its first step, or more of them where the host has given a row
other drafts meanwhile, and a drafted token in each later one.

An EAGLE-3 head reads pairs of a feature and the token behind it. A round leaves pairs of what it has committed on the
device, and the first step of the next one reads all that a row lacks: so a round without a draft reads, too. The last
pairs of each slot are kept in a ring, pair p at place p modulo its size. It holds those of two rounds: if the younger
one is dropped, the pairs of the older one are still there.

Shapes: B rows (row b is in slot b), T tokens of each, N tokens in all, W tokens or pairs that a row may lack, J
positions of a round, V vocabulary, S slots, R places of a ring, H hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from functools import partial
from typing import NamedTuple

import torch

from decoding.cache.kv_cache import KVCache
from decoding.cache.plan import Plan
from decoding.device import to_device
from decoding.drafters.head_drafters import Eagle3Drafter
from decoding.drafters.model import ModelDrafter
from decoding.engine.rounds.overlapped.inputs import NUM_NEWEST, rounded_width
from decoding.fused.recordings import power_of_two
from decoding.sampling.verdicts import RowVerdict
from decoding.sequence import Sequence


class RowsNow(NamedTuple):
    """Rows before a round, on the device."""

    lengths_B: torch.Tensor
    newest_BW: torch.Tensor  # the two newest tokens, or more
    is_active_B: torch.Tensor

    @property
    def index_B(self) -> torch.Tensor:
        return torch.arange(len(self.lengths_B), device=self.lengths_B.device)


Logits = tuple[torch.Tensor, torch.Tensor | None]  # [B, 1, V], and states [B, H] that the next step takes


class DraftSteps(ABC):
    """The steps of a drafter over its present cache, and what the host knows of what they have read."""

    reads_always = False  # whether a round without a draft reads, too
    catches_up = False  # whether the drafter can read what a row lacks, whatever that is

    def __init__(self, drafter: ModelDrafter | Eagle3Drafter) -> None:
        self.slots, self.max_len = drafter.slots, drafter.max_len

    @abstractmethod
    def first(self, rows: RowsNow, num_visible: int, *, is_wanted: bool = True) -> Logits:
        """Read what the rows lack; return logits for their first drafted token, without meaning unless `is_wanted`."""

    @abstractmethod
    def next(self, rows: RowsNow, tokens_B1: torch.Tensor, before: Logits, step: int, num_visible: int) -> Logits:
        """Return logits for drafted token `step`, behind the tokens that the step before has drafted."""

    @abstractmethod
    def levels(
        self, rows: Seq[Sequence], is_known: Seq[bool], were_level: Seq[bool] | None, is_drafted: bool
    ) -> list[bool]:
        """Tell of which rows the first step of a round will read all that they lack.

        The device knows some rows after the round before, which found these level (None: no round is under way), and in
        which some row has drafted or none has.
        """

    def level(self, rows: Seq[Sequence], limits: Seq[int]) -> tuple[list[bool], int]:
        """Return what `levels` does, of rows that the host knows, and how many newest tokens the first step reads."""
        return self.levels(rows, [False] * len(rows), None, is_drafted=False), 2

    @abstractmethod
    def note(self, slot: int, place: int, row: Sequence, verdict: RowVerdict, num_drafted: int) -> None:
        """Record what a round has read of a row that was level, is in this slot and was in slot `place` then.

        The verdict is that of the round, in which rows drafted up to `num_drafted` tokens, and is not committed yet. A
        row whose draft the host gave counts as one that drafted a token: of its draft the steps have read nothing.
        """


class ModelSteps(DraftSteps):
    """Steps of a draft model."""

    catches_up = True

    def __init__(self, drafter: ModelDrafter) -> None:
        super().__init__(drafter)
        self._drafter = drafter
        self._model, self._vocabulary = drafter.model, drafter.vocabulary

    def first(self, rows: RowsNow, num_visible: int, *, is_wanted: bool = True) -> Logits:
        back_W = torch.arange(-rows.newest_BW.shape[1], 0, device=rows.lengths_B.device)
        positions_BW = (rows.lengths_B[:, None] + back_W).clamp(min=0)
        return self._logits(rows, rows.newest_BW, positions_BW, num_visible)

    def next(self, rows: RowsNow, tokens_B1: torch.Tensor, before: Logits, step: int, num_visible: int) -> Logits:
        return self._logits(rows, tokens_B1, (rows.lengths_B + step - 1)[:, None], num_visible)

    def _logits(self, rows: RowsNow, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, num_visible: int) -> Logits:
        tokens_BT, width = self._vocabulary.known(tokens_BT), tokens_BT.shape[1]
        plan = plan_of_rows(self.slots.cache, rows, positions_BT, num_visible)
        wanted_B = rows.index_B * width + width - 1
        logits_BV = self._model.run_planned(tokens_BT.flatten(), wanted_B, plan)
        return self._vocabulary.to_target(logits_BV[:, None]), None

    def levels(
        self, rows: Seq[Sequence], is_known: Seq[bool], were_level: Seq[bool] | None, is_drafted: bool
    ) -> list[bool]:
        """Tell which rows lack no more than the two newest tokens.

        A round with draft steps leaves them so, and one without them adds a token.
        """
        levels = []
        for slot, (row, known) in enumerate(zip(rows, is_known, strict=True)):
            if known and were_level is not None and is_drafted:
                levels.append(were_level[slot])
            else:
                if were_level is None:  # other rounds leave guesses behind a row's newest token
                    self.slots.roll_back(slot, len(row) - 1)
                levels.append(self.slots.num_known[slot] >= len(row) + known - 2)
        return levels

    def level(self, rows: Seq[Sequence], limits: Seq[int]) -> tuple[list[bool], int]:
        self._drafter.count_drafting(limits)
        for slot, row in enumerate(rows):
            self.slots.roll_back(slot, len(row) - 1)
        lacking = [len(row) - known for row, known in zip(rows, self.slots.num_known, strict=False)]
        behind = [slot for slot, limit in enumerate(limits) if limit and lacking[slot] > NUM_NEWEST[-1]]
        if behind:
            self._drafter.catch_up([(slot, rows[slot]) for slot in behind])
            lacking = [1 if slot in behind else number for slot, number in enumerate(lacking)]
        most = max((number for number, limit in zip(lacking, limits, strict=True) if limit), default=1)
        num_newest = next(number for number in NUM_NEWEST if number >= most)
        return [number <= num_newest for number in lacking], num_newest

    def note(self, slot: int, place: int, row: Sequence, verdict: RowVerdict, num_drafted: int) -> None:
        if num_drafted:
            self.slots.num_known[slot] = len(row) + min(verdict.num_accepted, num_drafted - 1)


class HeadSteps(DraftSteps):
    """Steps of an EAGLE-3 head."""

    reads_always = True

    def __init__(self, drafter: Eagle3Drafter, num_slots: int, most_drafted: int) -> None:
        """Make rings for rows that draft up to `most_drafted` tokens."""
        super().__init__(drafter)
        self._drafter, self._head = drafter, drafter.head
        device, self._width = self._head.device, most_drafted + 1
        self._size = power_of_two(2 * (rounded_width(most_drafted) + 1))
        # In a spare slot, the last one, is what is left of rows that take no part.
        self._lines_SRH = torch.zeros(
            num_slots + 1, self._size, self._head.hidden_size, dtype=self._head.dtype, device=device
        )
        self._tokens_SR = torch.zeros(num_slots + 1, self._size, dtype=torch.int64, device=device)
        self._num_read_S = torch.zeros(num_slots, dtype=torch.int64, device=device)

    def first(self, rows: RowsNow, num_visible: int, *, is_wanted: bool = True) -> Logits:
        """Read W pairs of each row: what stands behind its last one is overwritten before anything sees it."""
        num_rows, index_W = len(rows.lengths_B), torch.arange(self._width, device=rows.lengths_B.device)
        starts_B = self._num_read_S[:num_rows]
        last_B = (rows.lengths_B - 2 - starts_B).clamp(0, self._width - 1)
        positions_BW = starts_B[:, None] + index_W
        at_BW = positions_BW % self._size
        tokens_BW = self._tokens_SR[:num_rows].gather(1, at_BW)
        lines_BWH = self._lines_SRH[rows.index_B[:, None], at_BW]
        lines_BWH = torch.where((index_W <= last_B[:, None])[..., None], lines_BWH, 0)  # others may be no numbers
        states_BWH = self._read(rows, tokens_BW, lines_BWH, positions_BW, num_visible, is_wanted)
        starts_B.copy_(torch.where(rows.is_active_B, rows.lengths_B - 1, starts_B))
        return self._head.logits(states_BWH[rows.index_B, last_B]) if is_wanted else (states_BWH, None)

    def next(self, rows: RowsNow, tokens_B1: torch.Tensor, before: Logits, step: int, num_visible: int) -> Logits:
        states_BH, positions_B1 = before[1], (rows.lengths_B + step - 2)[:, None]
        assert states_BH is not None, "each step leaves states"
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
        """Keep the features of the pairs that a round makes, from the rows' newest token on."""
        self._lines_SRH[self._places(rows, features_BJH.shape[1])] = features_BJH

    def keep_tokens(self, rows: RowsNow, written_BJ: torch.Tensor) -> None:
        """Keep the tokens of these pairs, those behind the rows' newest token."""
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
        """Take to the host what a round has left of a row that has got another last token, behind `note`."""
        self._drafter.take_left(slot)

    def note(self, slot: int, place: int, row: Sequence, verdict: RowVerdict, num_drafted: int) -> None:
        start, end = len(row) - 1, len(row) + verdict.num_accepted
        self._drafter.leave(slot, start, end, partial(self._left, place, start, end), in_place=slot == place)

    def _left(self, place: int, start: int, end: int) -> torch.Tensor:
        at_N = torch.arange(start, end, device=self._head.device) % self._size
        return self._lines_SRH[place, at_N]


def plan_of_rows(cache: KVCache, rows: RowsNow, positions_BT: torch.Tensor, num_visible: int) -> Plan:
    """Return the plan of a forward over as many tokens of each row; one that takes no part writes nowhere."""
    num_rows, width = positions_BT.shape
    is_active_BT = rows.is_active_B[:, None].expand(num_rows, width)
    positions_N = torch.where(is_active_BT, positions_BT, 0).flatten()
    slots_N = rows.index_B[:, None].expand(num_rows, width).flatten().contiguous()
    row_first = torch.arange(num_rows + 1, device=positions_N.device) * width
    return plan_of(cache, row_first, slots_N, positions_N, ~is_active_BT.flatten(), width, num_visible)


def plan_of(
    cache: KVCache,
    row_first: torch.Tensor,
    slots_N: torch.Tensor,
    positions_N: torch.Tensor,
    is_padding_N: torch.Tensor,
    width: int,
    num_visible: int,
) -> Plan:
    """Return the plan of a forward whose rows are on the device alone; padding is written to the spare position."""
    spare, num_rows = cache.num_positions, len(row_first) - 1
    return Plan(
        slots_B=None,
        positions_BT=positions_N.new_empty(num_rows, width),  # only its shape is read
        row_first=row_first,
        slots_N=slots_N if cache.places_S is None else cache.places_S[slots_N],
        positions_N=positions_N,
        written_N=torch.where(is_padding_N, spare, positions_N.clamp(max=spare)),
        num_visible=min(num_visible, spare),
        packing=None,
    )


def steps_of(drafter: ModelDrafter | Eagle3Drafter | None, num_slots: int, most_drafted: int) -> DraftSteps | None:
    """Return the steps of a drafter over its present cache; None without one."""
    if isinstance(drafter, Eagle3Drafter):
        return HeadSteps(drafter, num_slots, most_drafted)
    return None if drafter is None else ModelSteps(drafter)
