"""ModelDrafter: a small language model that drafts token by token, under the target's own sampling parameters.

Its first step reads every committed token that its cache lacks: the newest one, and after full acceptance also the last
drafted one, which it never read. The same forward fills that hole without a branch. A row that was left out for some
rounds lacks more tokens; a row that lacks many reads most of them in a forward of its own first.

Rows that have drafted enough leave the steps only when at most half of a step's rows still draft: a step over other
rows than the first slots must gather their keys and values, which does not pay for fewer.

Shapes: B rows, N of them in a step, T tokens of the first step, K drafted tokens, V vocabulary of the target.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.device import to_device
from decoding.drafters.base import Drafter
from decoding.network.language_model import LanguageModel
from decoding.sampling.distribution import keep_best, probabilities, process_logits
from decoding.sampling.rows import Rows
from decoding.sampling.verify import Draft, draw_draft
from decoding.sequence import Sequence

_MAX_IN_A_STEP = 32  # tokens that a row may lack and still read in the first step, beside the other rows
_CHUNK = 512  # missed tokens of a row to read in one forward: bounds its memory
_IDLE_ROUNDS = 16  # rounds with hardly a draft after which prompts are read only when a row drafts
_FEW = 4  # if at most one row in this many drafts, there is hardly a draft


class ModelDrafter(Drafter):
    """Drafts with a model of its own, in a slot cache that mirrors the target's."""

    has_model = True

    def __init__(
        self, model: LanguageModel, vocab_size: int, num_slots: int, max_model_len: int, most_candidates: int = 0
    ) -> None:
        """Allocate a cache. `vocab_size` is the target's; no other ids are proposed. Ids the draft lacks are read as 0.

        Under rejection a token is drawn from the `most_candidates` best ones (0: from all), and the stated distribution
        says so. That bounds the size of the distribution for a drafter that must send it to another process.
        """
        self.model = model
        self._most_candidates = most_candidates
        self._vocab_size = vocab_size
        self._max_len = min(max_model_len, model.max_positions or max_model_len)
        self._num_ingested: dict[int, int] = {}  # per slot, positions whose keys and values are known to be right
        # A slot with a value that is not finite drafts nothing.
        self.is_finite_S = torch.ones(num_slots, dtype=torch.bool, device=model.device)
        self._num_idle_rounds = 0
        model.allocate(num_slots, max_model_len)

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """Copy the donor's prefix as far as it is cached and finite; `prefill` computes the rest."""
        assert self.model.cache is not None
        if self.model.cache.hides_unwritten:  # and the device need not be asked
            self.is_finite_S[slot] = True
        elif not self.is_finite_S[slot]:
            self.reset(slot)
        num_copied = 0 if donor is None else min(num_shared, self._num_ingested.get(donor, 0))
        if donor is not None and num_copied:
            if self.model.cache.hides_unwritten:  # a copy that is not finite is a guess that is rejected
                self.is_finite_S[slot] = self.is_finite_S[donor]
            elif not (self.is_finite_S[donor] and self.model.cache.is_finite(donor, num_copied)):
                num_copied = 0
            if num_copied and donor != slot:
                self.model.cache.copy(donor, slot, num_copied)
        self._num_ingested[slot] = num_copied

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        """Read what the slots lack of these tokens, unless drafts are rare now: then the next draft reads them."""
        if self._num_idle_rounds >= _IDLE_ROUNDS:
            return
        known = [self._known(prompt[: self._max_len]) for prompt in prompts]
        starts = [self._num_ingested.get(slot, 0) for slot in slots]
        missing = [prompt[start:] for prompt, start in zip(known, starts, strict=True)]
        self.model.prefill(slots, missing, starts)
        for slot, prompt in zip(slots, known, strict=True):
            self._num_ingested[slot] = max(len(prompt), self._num_ingested.get(slot, 0))

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        """Read all but the newest token of each sequence, unless `prefill` has done so."""
        for slot in slots:
            self._num_ingested.setdefault(slot, 0)
        self.prefill(slots, [sequence.token_ids[:-1] for sequence in sequences])

    def propose(self, rows: Rows) -> Draft:
        """Draft tokens, and for rejection state what each was drawn from; none for rows beyond the draft's context."""
        lengths = [len(sequence) for sequence in rows.sequences]
        limits = [
            max(0, min(limit, self._max_len - length))
            for limit, length in zip(rows.num_draft_tokens, lengths, strict=True)
        ]
        for slot, length in enumerate(lengths):
            # From the newest token on the cache holds the draft's own guess. This must be forgotten in a round without
            # a draft, too: the next round would take the guess for the committed token.
            self._num_ingested[slot] = min(self._num_ingested[slot], length - 1)
        keys_B = rows.sampling.keys_B
        drafted_BK = keys_B.new_zeros(len(limits), max(limits))
        self.count_idle_rounds(sum(limit > 0 for limit in limits), len(limits))
        if not any(limits):
            return Draft(drafted_BK, torch.zeros_like(keys_B), max_draft_tokens_B=tuple(limits))
        num_finite_B = torch.zeros_like(keys_B)
        probs: list[torch.Tensor] = []
        stepping: list[int] = []
        for step in range(max(limits)):
            still_drafting = [slot for slot, limit in enumerate(limits) if limit > step]
            if not stepping or 2 * len(still_drafting) <= len(stepping):
                stepping = _in_place_or_gathered(still_drafting)
                part, index_N = rows.take(stepping), to_device(stepping, keys_B.device)
            drafted_NK = drafted_BK[index_N]
            if step == 0:
                logits_N1V = self._read(part, stepping, set(still_drafting))
            else:
                starts = [lengths[slot] + step - 1 for slot in stepping]
                logits_N1V = self._step(starts, drafted_NK[:, step - 1], stepping)
                for slot in still_drafting:  # their earlier drafts; rejected guesses are beyond the newest token
                    self._num_ingested[slot] = min(lengths[slot] + step, self._max_len)
            drafted_before_NK = drafted_NK[:, :step]
            if rows.verification == "rejection":
                scores_N1V = process_logits(logits_N1V, part.sampling, part.history(drafted_before_NK, step, 1))
                scores_N1V = keep_best(scores_N1V, self._most_candidates)
                is_finite_N = scores_N1V.amax((1, 2)).isfinite()
                lengths_N = part.positions(0, 1)[:, 0]
                tokens_N = draw_draft(scores_N1V, part.sampling, part.positions(step, 1), lengths_N)[:, 0]
                probs_NV = probabilities(scores_N1V, part.sampling)[:, 0]
                probs.append(probs_NV.new_zeros(len(limits), probs_NV.shape[1]).index_copy_(0, index_N, probs_NV))
            else:
                picks = part.pick(logits_N1V, drafted_before_NK, step)
                is_finite_N, tokens_N = picks.is_finite_BJ[:, 0], picks.token_ids_BJ[:, 0]
            is_finite_N = is_finite_N & self.is_finite_S[index_N]
            self.is_finite_S[index_N] = is_finite_N
            num_finite_B.index_add_(0, index_N, is_finite_N.long())
            drafted_BK[index_N, step] = tokens_N
        return Draft(
            drafted_BK,
            # Drop only tokens drawn after a value that is not finite: to drop a token because of itself would bias.
            torch.minimum(to_device(limits, keys_B.device), num_finite_B),
            torch.stack(probs, dim=1) if probs else None,
            max_draft_tokens_B=tuple(limits),
        )

    def num_ingested(self, slot: int) -> int:
        """Return how many positions of a slot have keys and values that are known to be right."""
        return self._num_ingested.get(slot, 0)

    def ingested(self, slot: int, num_positions: int) -> None:
        """Record that the first positions of a slot have been read."""
        self._num_ingested[slot] = num_positions

    def count_idle_rounds(self, num_drafting: int, num_rows: int) -> None:
        """Record how many rows draft in a round: where hardly any does, prompts are read when a row drafts."""
        is_idle = _FEW * num_drafting <= num_rows
        self._num_idle_rounds = self._num_idle_rounds + 1 if is_idle else 0

    def catch_up(self, rows: Seq[tuple[int, Sequence]]) -> None:
        """Read all but the newest token of these slots and rows."""
        known = [self._known(sequence.token_ids[:-1]) for _, sequence in rows]
        starts = [self.num_ingested(slot) for slot, _ in rows]
        slots = [slot for slot, _ in rows]
        self.model.prefill(slots, [row[start:] for row, start in zip(known, starts, strict=True)], starts)
        for slot, row in zip(slots, known, strict=True):
            self._num_ingested[slot] = max(len(row), self.num_ingested(slot))

    @property
    def max_len(self) -> int:
        """The longest row that is drafted for."""
        return self._max_len

    def roll_back(self, slot: int, length: int) -> None:
        """Forget the slot from position `length` on: rejected guesses of a row that wrote without drafting."""
        self._num_ingested[slot] = min(self._num_ingested.get(slot, 0), length)

    def rest(self) -> None:
        """Read no prompt before a row drafts."""
        self._num_idle_rounds = _IDLE_ROUNDS

    def swap(self, first: int, second: int) -> None:
        """Exchange keys and values: all positions if some values are not finite, so that none of those stays behind."""
        cache = self.model.cache
        assert cache is not None
        slots = [first, second]
        lengths = [self._num_ingested.get(slot, 0) for slot in slots]
        is_known = cache.hides_unwritten or bool(self.is_finite_S[slots].all())
        cache.swap(first, second, *(lengths if is_known else [cache.num_positions + 1] * 2))
        self._num_ingested[second], self._num_ingested[first] = lengths
        kept = self.is_finite_S[first].clone()
        self.is_finite_S[first] = self.is_finite_S[second]
        self.is_finite_S[second] = kept

    def reset(self, slot: int) -> None:
        """Clear the slot's keys and values: a NaN in a masked position would spoil all later logits (0 * NaN)."""
        assert self.model.cache is not None
        self.model.cache.zero(slot)
        self._num_ingested[slot] = 0
        self.is_finite_S[slot] = True

    def _read(self, part: Rows, slots: list[int], drafting: set[int]) -> torch.Tensor:
        """Return logits [N, 1, V] after the newest token of the rows that draft, from one forward over what they lack.

        The other rows of the step read as much of what they lack as fits beside them; their logits have no meaning.
        """
        self._catch_up([(slot, row) for slot, row in zip(slots, part.sequences, strict=True) if slot in drafting])
        ends = [min(len(sequence), self._max_len) for sequence in part.sequences]
        missing = [end - self._num_ingested[slot] for slot, end in zip(slots, ends, strict=True)]
        width = max(number for number, slot in zip(missing, slots, strict=True) if slot in drafting)
        # Up to a width of two, all rows read equally many tokens, some again: a rectangle is cheaper than packing.
        counts = [width if width <= 2 else min(max(number, 1), width) for number in missing]
        starts = [
            max(min(self._num_ingested[slot], end - count), 0)
            for slot, end, count in zip(slots, ends, counts, strict=True)
        ]
        reading = [
            self._known(sequence.token_ids[start : min(start + count, end)])
            for sequence, start, count, end in zip(part.sequences, starts, counts, ends, strict=True)
        ]
        for slot, start, chunk in zip(slots, starts, reading, strict=True):
            self._num_ingested[slot] = start + len(chunk)
        return self._forward(slots, starts, reading, width)

    def _catch_up(self, rows: Seq[tuple[int, Sequence]]) -> None:
        """Read all but the newest token of the slots that lack too many for one step; the memory is bounded."""
        while True:
            behind = [
                (slot, self._num_ingested[slot], sequence)
                for slot, sequence in rows
                if len(sequence) - self._num_ingested[slot] > _MAX_IN_A_STEP
            ]
            if not behind:
                return
            slots, starts = [slot for slot, _, _ in behind], [start for _, start, _ in behind]
            chunks = [self._known(row.token_ids[start : min(start + _CHUNK, len(row) - 1)]) for _, start, row in behind]
            self._forward(slots, starts, chunks, max(map(len, chunks)))
            for slot, start, chunk in zip(slots, starts, chunks, strict=True):
                self._num_ingested[slot] = start + len(chunk)

    def _forward(self, slots: list[int], starts: list[int], tokens: list[list[int]], width: int) -> torch.Tensor:
        """Return logits [N, 1, V] after the last of each row's tokens."""
        device = self.model.device
        tokens_NT = to_device([row + [0] * (width - len(row)) for row in tokens], device)
        last_N1 = to_device([[len(row) - 1] for row in tokens], device)
        lengths = None if width <= 2 else [len(row) for row in tokens]
        return self.of_target_ids(self.model.forward(starts, tokens_NT, last_N1, slots=slots, lengths=lengths))

    def _step(self, starts: list[int], newest_N: torch.Tensor, slots: list[int]) -> torch.Tensor:
        tokens_N1 = self.known(newest_N)[:, None]
        every_N1 = torch.zeros_like(tokens_N1)
        return self.of_target_ids(self.model.forward(starts, tokens_N1, every_N1, slots=slots))

    def of_target_ids(self, logits_BJV: torch.Tensor) -> torch.Tensor:
        """Fit logits to the target's vocabulary: ids it lacks are dropped, ids the draft lacks cannot be drawn."""
        num_missing = self._vocab_size - logits_BJV.shape[-1]
        if num_missing > 0:
            return torch.nn.functional.pad(logits_BJV, (0, num_missing), value=float("-inf"))
        return logits_BJV[..., : self._vocab_size]

    def known(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Replace the tokens that the draft does not know by 0."""
        return torch.where(token_ids < self.model.vocab_size, token_ids, 0)

    def _known(self, token_ids: Seq[int]) -> list[int]:
        """Replace the tokens that the draft does not know by 0."""
        return [token_id if token_id < self.model.vocab_size else 0 for token_id in token_ids]


def _in_place_or_gathered(drafting: list[int]) -> list[int]:
    """Return the slots of a step: all up to the last that drafts, or only those that draft if they are at most half."""
    in_place = list(range(drafting[-1] + 1))
    return drafting if 2 * len(drafting) <= len(in_place) else in_place
