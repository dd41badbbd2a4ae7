"""Steps of a draft on the device: what computes the logits of each drafted token, of rows that only the device knows.

A draft model reads the two newest tokens of each row in its first step, or more of them where the host has given a row
other drafts meanwhile, and a drafted token in each later one.

Those of heads are in `head_steps.py` beside this file.

Shapes: B rows (row b is in slot b), T tokens of each, N tokens in all, W tokens that a row may lack, J positions of a
round, V vocabulary, H hidden size of a head.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

import torch

from decoding.cache.kv_cache import KVCache
from decoding.cache.plan import Plan
from decoding.drafters.model import ModelDrafter
from decoding.drafters.stepwise import HeadDrafter
from decoding.engine.rounds.overlapped.inputs import MOST_GIVEN, NUM_NEWEST
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


Logits = tuple[torch.Tensor, Any]  # [B, 1, V], and what the next step takes


class DraftSteps(ABC):
    """The steps of a drafter over its present cache, and what the host knows of what they have read."""

    reads_always = False  # whether a round without a draft reads, too
    catches_up = False  # whether the drafter can read what a row lacks, whatever that is
    most = MOST_GIVEN  # tokens that it can draft for a row in a round

    def __init__(self, drafter: ModelDrafter | HeadDrafter[Any]) -> None:
        self.slots, self.max_len = drafter.slots, drafter.max_len

    @abstractmethod
    def first(self, rows: RowsNow, num_visible: int, num_wanted: int) -> Logits:
        """Read what the rows lack; return logits for the first one of `num_wanted` drafted tokens (0: any)."""

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

    def keep_features(self, rows: RowsNow, features_BJH: torch.Tensor) -> None:  # noqa: B027 - a model reads none
        """Keep the features that the target hands out in a round, from the rows' newest token on."""

    def keep_tokens(self, rows: RowsNow, written_BJ: torch.Tensor) -> None:  # noqa: B027
        """Keep the tokens that a round writes, those behind the rows' newest token."""

    def take_back(self, slot: int) -> None:  # noqa: B027
        """Take to the host what a round has left of a row that has got another last token, behind `note`."""


class ModelSteps(DraftSteps):
    """Steps of a draft model."""

    catches_up = True

    def __init__(self, drafter: ModelDrafter) -> None:
        super().__init__(drafter)
        self._drafter = drafter
        self._model, self._vocabulary = drafter.model, drafter.vocabulary

    def first(self, rows: RowsNow, num_visible: int, num_wanted: int) -> Logits:
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
