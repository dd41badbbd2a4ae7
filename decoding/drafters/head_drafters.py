"""Head drafters: they draft with an EAGLE-3, P-EAGLE, MTP, DFlash or DSpark head, which reads the target's features.

EAGLE-3, MTP: after each forward the target hands out a feature of every token that it has read. Feature i makes a pair
with token i + 1, so of a row of L tokens the pairs 0, ..., L - 2 are true; the last one gives the first drafted token.
Further tokens are drafted from what the head computed itself; the next round overwrites those entries by true pairs. A
row that does not draft reads its pairs, too, some rounds later. P-EAGLE reads masks behind the last pair in the same
forward, and drafts one token at each of these places.

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

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from itertools import accumulate

import torch

from decoding.device import to_device
from decoding.drafters.base import swap_entries
from decoding.drafters.stepwise import HeadDrafter
from decoding.heads.dflash_head import Block, DFlashHead
from decoding.heads.eagle3_head import Eagle3Head
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft
from decoding.sequence import Sequence

_MOST_HELD = 16  # features of a row that does not draft
_Piece = tuple[int, torch.Tensor]  # features [N, H] of consecutive positions of a row, and the first position


class Eagle3Drafter(HeadDrafter[Eagle3Head]):
    """Drafts with a head, in a slot cache that mirrors the target's."""

    depth = 1  # modules of the head: pair i of the last one contains token i + `depth`

    def __init__(self, head: Eagle3Head, num_slots: int, max_model_len: int) -> None:
        super().__init__(head, num_slots, max_model_len)
        self._held: dict[int, list[_Piece]] = {}  # by slot: features of later positions, in order
        self._rows: dict[int, Sequence] = {}  # by slot: the row that runs there, or has run there last
        self._states: tuple[list[int], torch.Tensor] = [], torch.empty(0)  # after the last step, and the step's slots

    def receive(
        self,
        slots: Seq[int],
        starts: Seq[int],
        lengths: Seq[int],
        tokens_N: torch.Tensor,
        features_NH: torch.Tensor,
    ) -> None:
        """Hold the features of a forward. What was held of these positions belonged to tokens that were rejected."""
        first = 0
        for slot, start, length in zip(slots, starts, lengths, strict=True):
            kept = [(at, piece_NH[: start - at]) for at, piece_NH in self._held.get(slot, []) if at < start]
            # Behind a gap nothing is held: a row whose features were not handed out for a while drafts no more.
            has_gap = start > (_end(kept) if kept else self.slots.num_known[slot])
            if start < self.max_len and not has_gap:
                kept.append((start, features_NH[first : first + length]))
            self._held[slot] = kept
            first += length

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """Copy the donor's pairs, as far as its features have come."""
        if donor is not None and donor in self._rows and num_shared > self.slots.num_known[donor]:
            self._read({donor: num_shared})
        super().begin(slot, donor, num_shared)
        self._held[slot] = []
        self._rows.pop(slot, None)

    def num_copyable(self, slot: int, num_shared: int) -> int:
        """Return how many tokens have pairs to copy; a row beyond the head's context, which needs none, copies all."""
        held = self._held.get(slot)
        num_known = _end(held) if held else self.slots.num_known[slot]
        num_shared = max(0, num_shared + 1 - self.depth)
        return num_shared if num_known >= self.max_len else min(num_shared, num_known)

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        """Read all pairs of these prompts, whose features the target has just handed out."""
        ends = {slot: len(prompt) - self.depth for slot, prompt in zip(slots, prompts, strict=True)}
        self._read(ends, dict(zip(slots, prompts, strict=True)))

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        self._rows.update(zip(slots, sequences, strict=True))

    def swap(self, first: int, second: int) -> None:
        """Exchange keys and values, and what is held."""
        super().swap(first, second)
        for table in (self._held, self._rows):
            swap_entries(table, first, second)

    def reset(self, slot: int) -> None:
        """Clear the slot, and forget what is held."""
        super().reset(slot)
        self._held[slot] = []

    def _limits(self, rows: Rows) -> list[int]:
        """Return how many tokens each row may draft; one that lacks pairs drafts none, nor does a row of one token."""
        limits = super()._limits(rows)
        ends = [_end(held) if (held := self._held.get(slot)) else 0 for slot in range(len(limits))]
        limits = [
            limit if 0 < len(sequence) - 1 <= end else 0
            for limit, sequence, end in zip(limits, rows.sequences, ends, strict=True)
        ]
        self._rows.update(enumerate(rows.sequences))
        # Of a row that does not draft one pair is left: the row may stand between others that do.
        waiting = {
            slot: len(row) - 1 - self.depth
            for slot, (row, limit) in enumerate(zip(rows.sequences, limits, strict=True))
            if limit < self.depth and len(row) - 1 - self.slots.num_known[slot] > _MOST_HELD
        }
        self._read(waiting)
        return limits

    def _first_logits(self, part: Rows, slots: list[int], drafting: set[int]) -> torch.Tensor:
        starts, lengths, tokens, pieces, ends = [], [], [], [], {}
        masks = {slot: self._num_masks(slot) for slot in slots}
        for slot, row in zip(slots, part.sequences, strict=True):
            start, end = self._next_pairs(slot, len(row) - 1)
            if start < end:
                ends[slot] = end
            else:  # nothing is known of it: it writes where the next true pair will be, and has read none
                start, end = max(len(row) - 2, 0), max(len(row) - 1, 1)
            starts.append(start)
            lengths.append(end - start + masks[slot])
            tokens += [*row.token_ids[start + 1 : end + 1], 0][: end - start]
            tokens += [self.head.mask_token_id] * masks[slot]
            pieces.append((slot, start, end))
        features_NH = self._features(pieces, masks)
        states_NH = self.head.read(to_device(tokens, self.head.device), features_NH, starts, lengths, slots)
        if len(states_NH) > len(slots):  # only those after each row's last pair and its masks are wanted
            places, widest = range(1 + max(masks.values())), zip(accumulate(lengths), masks.values(), strict=True)
            wanted = [end - 1 - more + min(place, more) for end, more in widest for place in places]
            states_NH = states_NH[to_device(wanted, self.head.device)]
        for slot, end in ends.items():
            self._forget(slot, end)
        return self._logits(slots, states_NH)

    def _num_masks(self, slot: int) -> int:
        """Return how many masks stand behind the last pair of a row that drafts."""
        return 0

    def _next_logits(self, step: int, slots: list[int], drafting: set[int], newest_N: torch.Tensor) -> torch.Tensor:
        before, states_NH = self._states
        if before != slots:
            # A row that does not draft may stand between those of this step and not of the last one: its state is zero.
            lines = {slot: line for line, slot in enumerate(before)}
            states_NH = torch.nn.functional.pad(states_NH, (0, 0, 0, 1))
            states_NH = states_NH[to_device([lines.get(slot, len(before)) for slot in slots], self.head.device)]
        starts = [len(self._rows[slot]) - 2 + step for slot in slots]
        return self._logits(slots, self.head.read(newest_N, states_NH, starts, [1] * len(slots), slots))

    def _logits(self, slots: list[int], states_NH: torch.Tensor) -> torch.Tensor:
        logits_N1V, states_NH = self.head.logits(states_NH)
        self._states = slots, states_NH
        return logits_N1V

    def _read(self, ends: dict[int, int], tokens: dict[int, Seq[int]] | None = None) -> None:
        """Read the pairs of these slots up to `ends` that have not been read, without an output."""
        pieces = []
        for slot, end in ends.items():
            start, end = self._next_pairs(slot, end)
            if start < end:
                pieces.append((slot, start, end))
        if not pieces:
            return
        fed: list[int] = []
        for slot, start, end in pieces:
            row = self._rows[slot].token_ids if tokens is None else tokens[slot]
            fed += row[start + 1 : end + 1]
        self.head.read(
            to_device(fed, self.head.device),
            self._features(pieces),
            [start for _, start, _ in pieces],
            [end - start for _, start, end in pieces],
            [slot for slot, _, _ in pieces],
            is_wanted=False,
        )
        for slot, _, end in pieces:
            self._forget(slot, end)

    def _next_pairs(self, slot: int, end: int) -> tuple[int, int]:
        """Return the range of pairs up to `end` that have not been read and whose features are held."""
        held = self._held.get(slot, [])
        start = self.slots.num_known[slot]
        if not held:
            return start, start
        return max(start, held[0][0]), min(end, _end(held))

    def _forget(self, slot: int, end: int) -> None:
        """Count the pairs up to `end` as read, and drop their features."""
        self.slots.num_known[slot] = end
        self._held[slot] = [piece for piece in self._held.get(slot, []) if _end([piece]) > end]

    def _features(self, pieces: Seq[tuple[int, int, int]], masks: Mapping[int, int] | None = None) -> torch.Tensor:
        """Return the features [N, H] of these ranges (slot, start, end), end to end; zeros where none are held.

        Behind each stand as many masks as its slot has.
        """
        zeros_1H = torch.zeros(1, self.head.hidden_size, dtype=self.head.dtype, device=self.head.device)
        found = []
        for slot, start, end in pieces:
            for first, piece_NH in self._held.get(slot, []):
                until = min(end, first + len(piece_NH))
                if first <= start < until:
                    found.append(piece_NH[start - first : until - first])
                    start = until
            if start < end:
                found.append(zeros_1H.expand(end - start, -1))
            if masks and masks[slot]:
                found.append(self.head.mask_1H.expand(masks[slot], -1))
        return found[0] if len(found) == 1 else torch.cat(found)


def _end(held: Seq[_Piece]) -> int:
    """Return the position behind the last one of these pieces."""
    start, last_NH = held[-1]
    return start + len(last_NH)


class PEagleDrafter(Eagle3Drafter):
    """Drafts all tokens of a round in one forward."""

    def _limits(self, rows: Rows) -> list[int]:
        self._limits_S = [min(limit, self.head.block_tokens) for limit in super()._limits(rows)]
        return self._limits_S

    def _num_masks(self, slot: int) -> int:
        return max(self._limits_S[slot] - 1, 0)

    def _logits(self, slots: list[int], states_NH: torch.Tensor) -> torch.Tensor:
        """Keep the logits of all places, and return those of the first."""
        logits_NKV = self.head.logits(states_NH)[0].view(len(slots), -1, self.head.vocab_size)
        self._block = slots, logits_NKV
        return logits_NKV[:, :1]

    def _next_logits(self, step: int, slots: list[int], drafting: set[int], newest_N: torch.Tensor) -> torch.Tensor:
        before, logits_NKV = self._block
        if before != slots:
            # A row that does not draft may stand between those of this step and not of the last one: it has zeros.
            lines = {slot: line for line, slot in enumerate(before)}
            logits_NKV = torch.nn.functional.pad(logits_NKV, (0, 0, 0, 0, 0, 1))
            logits_NKV = logits_NKV[to_device([lines.get(slot, len(before)) for slot in slots], self.head.device)]
            self._block = slots, logits_NKV
        return logits_NKV[:, step : step + 1]


class DFlashDrafter(HeadDrafter[DFlashHead]):
    """Drafts with a head, in a slot cache that mirrors the target's."""

    def __init__(self, head: DFlashHead, num_slots: int, max_model_len: int) -> None:
        super().__init__(head, num_slots, max_model_len)
        self._block: tuple[list[int], Block] | None = None  # of this round, and the slots of its lines
        self._num_wanted, self._min_survival = 0, 0.0
        self._survival_S = torch.ones(num_slots, device=head.device)  # chance of a row's draft, up to the last token
        self._num_paying_S = torch.zeros(num_slots, dtype=torch.int64, device=head.device)

    def receive(
        self,
        slots: Seq[int],
        starts: Seq[int],
        lengths: Seq[int],
        tokens_N: torch.Tensor,
        features_NH: torch.Tensor,
    ) -> None:
        """Store the keys and values of a forward's tokens."""
        self.head.insert(features_NH, starts, lengths, slots)
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
        newest_N = to_device([row.token_ids[-1] for row in part.sequences], self.head.device)
        self._block = slots, self.head.fill_in(newest_N, starts, slots, self._num_wanted)
        self._survival_S.fill_(1.0)
        self._num_paying_S.zero_()
        return self._logits(0, slots, newest_N)

    def _next_logits(self, step: int, slots: list[int], drafting: set[int], newest_N: torch.Tensor) -> torch.Tensor:
        assert self._block is not None
        before, block = self._block
        if before != slots:
            # A row that does not draft may stand between those of this step and not of the last one: its block is zero.
            lines = {slot: line for line, slot in enumerate(before)}
            self._block = slots, block.of([lines.get(slot, len(before)) for slot in slots])
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
