"""Head drafters: they draft with an EAGLE-3, P-EAGLE or MTP head, which reads the target's features with its tokens.

EAGLE-3, MTP: after each forward the target hands out a feature of every token that it has read. Feature i makes a pair
with token i + 1, so of a row of L tokens the pairs 0, ..., L - 2 are true; the last one gives the first drafted token.
Further tokens are drafted from what the head computed itself; the next round overwrites those entries by true pairs. A
row that does not draft reads its pairs, too, some rounds later. P-EAGLE reads masks behind the last pair in the same
forward, and drafts one token at each of these places.

Shapes: N tokens or rows of a step, S slots, V vocabulary of the target, H hidden size of the head.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import NamedTuple

import torch

from decoding.device import to_device
from decoding.drafters.base import swap_entries
from decoding.drafters.stepwise import HeadDrafter, lines_of
from decoding.heads.eagle3_head import Eagle3Head
from decoding.sampling.rows import Rows
from decoding.sequence import Sequence

_MOST_HELD = 16  # features of a row that does not draft
_Piece = tuple[int, torch.Tensor]  # features [N, H] of consecutive positions of a row, and the first position


class _Left(NamedTuple):
    """The features that a round on the device has left there, of the pairs that the head has not read."""

    start: int
    end: int
    lines: Callable[[], torch.Tensor]  # copies them, [N, H]


class Eagle3Drafter(HeadDrafter[Eagle3Head]):
    """Drafts with a head, in a slot cache that mirrors the target's."""

    depth = 1  # modules of the head: pair i of the last one contains token i + `depth`

    def __init__(self, head: Eagle3Head, num_slots: int, max_model_len: int) -> None:
        super().__init__(head, num_slots, max_model_len)
        self._held: dict[int, list[_Piece]] = {}  # by slot: features of later positions, in order
        self._left: dict[int, _Left] = {}  # by slot, in place of what is held
        self._rows: dict[int, Sequence] = {}  # by slot: the row that runs there, or has run there last
        self._states: tuple[list[int], torch.Tensor] = [], torch.empty(0)  # after the last step, and the step's slots

    def receive(self, slots: Seq[int], starts: Seq[int], lengths: Seq[int], _: object, lines_NH: torch.Tensor) -> None:
        """Hold the features of a forward. What was held of these positions belonged to tokens that were rejected."""
        for slot, start, own_NH in zip(slots, starts, torch.split(lines_NH, list(lengths)), strict=True):
            kept = [(at, piece_NH[: start - at]) for at, piece_NH in self.take_left(slot) if at < start]
            # Behind a gap nothing is held: a row whose features were not handed out for a while drafts no more.
            has_gap = start > (_end(kept) if kept else self.slots.num_known[slot])
            if start < self.max_len and not has_gap:
                kept.append((start, own_NH))
            self._held[slot] = kept

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """Copy the donor's pairs, as far as its features have come."""
        if donor is not None and donor in self._rows and num_shared > self.slots.num_known[donor]:
            self._read({donor: num_shared})
        super().begin(slot, donor, num_shared)
        self._drop(slot)
        self._rows.pop(slot, None)

    @property
    def num_read_again(self) -> int:
        return self.depth

    def num_copyable(self, slot: int, num_shared: int) -> int:
        """Return how many tokens have pairs to copy; a row beyond the head's context, which needs none, copies all."""
        num_known = self._end_of(slot) or self.slots.num_known[slot]
        return num_shared if num_known >= self.max_len else min(num_shared, num_known + self.depth - 1)

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        """Read all pairs of these prompts, whose features the target has just handed out."""
        ends = {slot: len(prompt) - self.depth for slot, prompt in zip(slots, prompts, strict=True)}
        self._read(ends, dict(zip(slots, prompts, strict=True)))

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        self._rows.update(zip(slots, sequences, strict=True))

    def swap(self, first: int, second: int) -> None:
        """Exchange keys and values, and what is held; what is left on the device is copied, since it stays there."""
        super().swap(first, second)
        for slot in (first, second):
            self.take_left(slot)
        for table in (self._held, self._rows):
            swap_entries(table, first, second)

    def reset(self, slot: int) -> None:
        """Clear the slot, and forget what is held."""
        super().reset(slot)
        self._drop(slot)

    def read_up(self, rows: Seq[tuple[int, Sequence]]) -> tuple[list[bool], torch.Tensor]:
        """Read all pairs of these slots and rows but the last; return which lack no other, and its features [N, H].

        A row of one token lacks none, and has no pair: its features are zeros, as are those that are not held.
        """
        self._rows.update(rows)
        self._read({slot: len(row) - 2 for slot, row in rows})
        last = [(slot, max(len(row) - 2, 0), max(len(row) - 1, 1)) for slot, row in rows]
        levels = [
            len(row) == 1 or self._next_pairs(slot, len(row) - 1) == (len(row) - 2, len(row) - 1) for slot, row in rows
        ]
        return levels, self._features(last)

    def leave(self, slot: int, start: int, end: int, lines: Callable[[], torch.Tensor], *, in_place: bool) -> None:
        """Record that the device has read a row's pairs up to `start`, and has features of the others, up to `end`.

        `lines` copies these when they are needed, if the row is still `in_place`; else at once: another row writes
        there.
        """
        self._drop(slot)
        self.slots.num_known[slot] = start
        self._left[slot] = _Left(start, end, lines)
        if not in_place:
            self.take_left(slot)

    def first_left(self, slot: int, row: Sequence) -> int | None:
        """Return the first pair of a row that is not read, if all such pairs are on the device, in the same slot."""
        left = self._left.get(slot)
        return left.start if left is not None and left.end == len(row) - 1 else None

    def _limits(self, rows: Rows) -> list[int]:
        """Return how many tokens each row may draft; one that lacks pairs drafts none, nor does a row of one token."""
        limits = super()._limits(rows)
        ends = [self._end_of(slot) for slot in range(len(limits))]
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
        states_NH = self.head.read(to_device(tokens, self.head.device), features_NH, (starts, lengths, slots))
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
        states_NH = lines_of(slots, *self._states)
        starts = [len(self._rows[slot]) - 2 + step for slot in slots]
        return self._logits(slots, self.head.read(newest_N, states_NH, (starts, [1] * len(slots), slots)))

    def _logits(self, slots: list[int], states_NH: torch.Tensor) -> torch.Tensor:
        logits_N1V, states_NH = self.head.logits(states_NH)
        self._states = slots, states_NH
        return logits_N1V

    def _read(self, ends: dict[int, int], tokens: dict[int, Seq[int]] | None = None) -> None:
        """Read the pairs of these slots up to `ends` that have not been read, without an output."""
        pieces, fed = [], list[int]()
        for slot, wanted in ends.items():
            start, end = self._next_pairs(slot, wanted)
            if start < end:
                pieces.append((slot, start, end))
                fed += (self._rows[slot].token_ids if tokens is None else tokens[slot])[start + 1 : end + 1]
        if not pieces:
            return
        slots, starts, _ = zip(*pieces, strict=True)
        places = starts, [end - start for _, start, end in pieces], slots
        self.head.read(to_device(fed, self.head.device), self._features(pieces), places, is_wanted=False)
        for slot, _, end in pieces:
            self._forget(slot, end)

    def _next_pairs(self, slot: int, end: int) -> tuple[int, int]:
        """Return the range of pairs up to `end` that have not been read and whose features are held."""
        held = self.take_left(slot)
        start = self.slots.num_known[slot]
        if not held:
            return start, start
        return max(start, held[0][0]), min(end, _end(held))

    def _drop(self, slot: int) -> None:
        self._held[slot] = []
        self._left.pop(slot, None)

    def _forget(self, slot: int, end: int) -> None:
        """Count the pairs up to `end` as read, and drop their features."""
        self.slots.num_known[slot] = end
        self._held[slot] = [piece for piece in self.take_left(slot) if _end([piece]) > end]

    def take_left(self, slot: int) -> list[_Piece]:
        """Return what is held of a slot, in order; what is left on the device is copied first."""
        if (left := self._left.pop(slot, None)) is not None:
            self._held[slot] = [(left.start, left.lines())]
        return self._held.get(slot, [])

    def _end_of(self, slot: int) -> int:
        """Return the position behind the last feature that is held, or left on the device; 0 if there is none."""
        if slot in self._left:
            return self._left[slot].end
        return _end(held) if (held := self._held.get(slot)) else 0

    def _features(self, pieces: Seq[tuple[int, int, int]], masks: Mapping[int, int] | None = None) -> torch.Tensor:
        """Return the features [N, H] of these ranges (slot, start, end), end to end; zeros where none are held.

        Behind each stand as many masks as its slot has.
        """
        zeros_1H = torch.zeros(1, self.head.hidden_size, dtype=self.head.dtype, device=self.head.device)
        found = []
        for slot, start, end in pieces:
            for first, piece_NH in self.take_left(slot):
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

    def __init__(self, head: Eagle3Head, num_slots: int, max_model_len: int) -> None:
        super().__init__(head, num_slots, max_model_len)
        self._most_tokens: list[int] = []  # that each row may draft in this round
        self._logits_of_places: tuple[list[int], torch.Tensor] = [], torch.empty(0)  # [N, K, V], and the step's slots

    def _limits(self, rows: Rows) -> list[int]:
        self._most_tokens = [min(limit, self.head.block_tokens) for limit in super()._limits(rows)]
        return self._most_tokens

    def _num_masks(self, slot: int) -> int:
        return max(self._most_tokens[slot] - 1, 0)

    def _logits(self, slots: list[int], states_NH: torch.Tensor) -> torch.Tensor:
        """Keep the logits of all places, and return those of the first."""
        logits_NKV = self.head.logits(states_NH)[0].view(len(slots), -1, self.head.vocab_size)
        self._logits_of_places = slots, logits_NKV
        return logits_NKV[:, :1]

    def _next_logits(self, step: int, slots: list[int], drafting: set[int], newest_N: torch.Tensor) -> torch.Tensor:
        self._logits_of_places = slots, lines_of(slots, *self._logits_of_places)
        return self._logits_of_places[1][:, step : step + 1]
