"""ModelDrafter: a small language model that drafts token by token, under the target's own sampling parameters.

Its first step reads every committed token that its cache lacks: the newest one, and after full acceptance also the last
drafted one, which it never read. The same forward fills that hole without a branch. A row that was left out for some
rounds lacks more tokens; a row that lacks many reads most of them in a forward of its own first.

A draft with another tokenizer reads the text in its own tokens (`DraftIds`). A row whose text it has no tokens
for, or that is too long in them, does not draft.

Shapes: N rows of a step, T tokens of the first step.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.device import to_device
from decoding.drafters.stepwise import StepwiseDrafter
from decoding.network.language_model import LanguageModel
from decoding.sampling.rows import Rows
from decoding.sequence import Sequence
from decoding.vocabulary.draft_ids import DraftIds, MappedIds

_MAX_IN_A_STEP = 32  # tokens that a row may lack and still read in the first step, beside the other rows
_IDLE_ROUNDS = 16  # rounds with hardly a draft after which prompts are read only when a row drafts
_FEW = 4  # if at most one row in this many drafts, there is hardly a draft


class ModelDrafter(StepwiseDrafter):
    """Drafts with a model of its own, in a slot cache that mirrors the target's."""

    def __init__(
        self,
        model: LanguageModel,
        vocab_size: int,
        num_slots: int,
        max_model_len: int,
        most_candidates: int = 0,
        num_draft_tokens: int = 0,
    ) -> None:
        """Allocate a cache. `vocab_size` is the target's; no other ids are proposed.

        `most_candidates` as in `StepwiseDrafter`, `num_draft_tokens` as in `Target.allocate`.
        """
        max_len = min(max_model_len, model.max_positions or max_model_len)
        super().__init__(model, num_slots, max_len, most_candidates)
        self.model = model
        self.vocabulary = DraftIds(vocab_size, model.vocab_size)
        if model.vocabulary_map is not None:
            self.vocabulary = MappedIds(model.vocabulary_map, model.device)
        self._texts: list[Seq[int]] = []  # of the round's rows, in the draft's tokens
        self._num_idle_rounds = 0  # with hardly a draft, since the last one with more
        # A step leaves a state behind each of its tokens, and those of a draft must stay.
        self._most_in_a_step = num_draft_tokens + 1 if model.has_states else _MAX_IN_A_STEP
        model.allocate(num_slots, max_model_len, num_draft_tokens)

    def renew(self) -> None:
        """Forget all keys and values: each row is read again before it drafts."""
        self.slots.forget()
        self._num_idle_rounds = 0

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        self.slots.begin(slot, donor, self.vocabulary.begin(slot, donor, num_shared))

    @property
    def is_paged(self) -> bool:
        return self.slots.cache.is_paged

    def reserve(self, slot: int, first: int, end: int) -> bool:
        """Reserve as the target does, from the last known token on, which may be read again.

        A text in other tokens has other positions, and gets pages as it is read.
        """
        if self.vocabulary.is_mapped:
            return True
        known = self.slots.num_known
        first, known[slot] = max(0, min(first, known[slot]) - 1), min(known[slot], end)
        return self.slots.cache.reserve(slot, first, end)

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        """Read what the slots lack of these tokens, unless drafts are rare now: then the next draft reads them."""
        if self._num_idle_rounds < _IDLE_ROUNDS:
            texts = [self._read(slot, prompt) for slot, prompt in zip(slots, prompts, strict=True)]
            self._complete(slots, [text[:-1] for text in texts] if self.vocabulary.is_mapped else texts)

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        """Read all but the newest token of each sequence, unless `prefill` has done so."""
        self.prefill(slots, [sequence.token_ids[:-1] for sequence in sequences])

    def rest(self) -> None:
        """Read no prompt before a row drafts."""
        self._num_idle_rounds = _IDLE_ROUNDS

    def swap(self, first: int, second: int) -> None:
        super().swap(first, second)
        self.vocabulary.swap(first, second)

    def count_drafting(self, limits: Seq[int]) -> None:
        """Record how many tokens each row drafts in a round. Where drafts are rare, no prompt is read before one."""
        is_idle = _FEW * sum(limit > 0 for limit in limits) <= len(limits)
        self._num_idle_rounds = self._num_idle_rounds + 1 if is_idle else 0

    def catch_up(self, rows: Seq[tuple[int, Sequence]]) -> None:
        """Read all but the newest token of these slots and rows, whose ids are the target's."""
        self._complete([slot for slot, _ in rows], [sequence.token_ids[:-1] for _, sequence in rows])

    def _limits(self, rows: Rows) -> list[int]:
        """Return how many tokens each row may draft, and write the texts of those that may in the draft's tokens."""
        limits, num_known, self._texts = [], self.slots.num_known, []
        for slot, (sequence, limit) in enumerate(zip(rows.sequences, rows.num_draft_tokens, strict=True)):
            self.slots.roll_back(slot, self.vocabulary.num_right(slot, sequence, num_known[slot]))
            text = self._read(slot, sequence.token_ids, is_needed=limit > 0)
            self._texts.append(text)
            limits.append(max(0, min(limit, self.max_len - len(text))) if text else 0)
        self.count_drafting(limits)
        return limits

    def _read(self, slot: int, token_ids: Seq[int], *, is_needed: bool = True) -> Seq[int]:
        """Return a row's text in the draft's tokens, and forget what follows behind its beginning in the slot."""
        text, num_right = self.vocabulary.read(slot, token_ids, self.slots.num_known[slot], is_needed=is_needed)
        self.slots.roll_back(slot, num_right)
        return text

    def _first_logits(self, part: Rows, slots: list[int], drafting: set[int]) -> torch.Tensor:
        """Return logits [N, 1, V] after the newest token of the rows that draft, from one forward over what they lack.

        The other rows of the step read as much of what they lack as fits beside them; their logits have no meaning.
        """
        texts, num_known = [self._texts[slot] for slot in slots], self.slots.num_known
        if self.model.has_states:  # each row reads its newest token, from a state before it
            for slot, text in zip(slots, texts, strict=True):
                self.slots.roll_back(slot, max(0, min(len(text), self.max_len) - 1))
        most = self._most_in_a_step
        behind = [slot for slot in slots if slot in drafting and len(self._texts[slot]) - num_known[slot] > most]
        self._complete(behind, [self._texts[slot][:-1] for slot in behind])
        ends = [min(len(text), self.max_len) for text in texts]
        missing = [max(1, end - num_known[slot]) for slot, end in zip(slots, ends, strict=True)]
        width = max(number for number, slot in zip(missing, slots, strict=True) if slot in drafting)
        # Up to a width of two, all rows read equally many tokens, some again: a rectangle is cheaper than packing.
        is_rectangle = width == 1 or (width == 2 and not self.model.has_states)
        counts = [width if is_rectangle else min(number, width) for number in missing]
        starts = [
            max(min(num_known[slot], end - count), 0) for slot, end, count in zip(slots, ends, counts, strict=True)
        ]
        reading = [
            self._known(text[start : min(start + count, end)])
            for text, start, count, end in zip(texts, starts, counts, ends, strict=True)
        ]
        tokens_NT = to_device([row + [0] * (width - len(row)) for row in reading], self.model.device)
        lengths = [max(1, len(row)) for row in reading]  # a row that does not draft may have no text yet
        last_N1 = to_device([[length - 1] for length in lengths], self.model.device)
        packed = None if is_rectangle else lengths
        logits_N1D = self.model.forward(starts, tokens_NT, last_N1, slots=slots, lengths=packed)
        for slot, start, chunk in zip(slots, starts, reading, strict=True):  # not before: it may find no page
            num_known[slot] = max(num_known[slot], start + len(chunk))
        return self.vocabulary.to_target(logits_N1D)

    def _next_logits(self, step: int, slots: list[int], drafting: set[int], newest_N: torch.Tensor) -> torch.Tensor:
        starts = [max(0, len(self._texts[slot]) + step - 1) for slot in slots]
        if self.model.has_states:  # a row that does not draft may have none there
            known = self.slots.num_known
            starts = [start if slot in drafting else known[slot] for slot, start in zip(slots, starts, strict=True)]
        tokens_N1 = self.vocabulary.known(newest_N)[:, None]
        logits_N1D = self.model.forward(starts, tokens_N1, torch.zeros_like(tokens_N1), slots=slots)
        for slot, start in zip(slots, starts, strict=True):
            if slot in drafting:  # their earlier drafts; rejected guesses are beyond the newest token
                self.slots.num_known[slot] = min(start + 1, self.max_len)
        return self.vocabulary.to_target(logits_N1D)

    def _complete(self, slots: Seq[int], texts: Seq[Seq[int]]) -> None:
        """Read what the slots lack of these texts, as far as the draft sees them."""
        num_known = self.slots.num_known
        starts, ends = [num_known[slot] for slot in slots], [min(len(text), self.max_len) for text in texts]
        missing = [text[start:end] for text, start, end in zip(texts, starts, ends, strict=True)]
        self.model.prefill(slots, list(map(self._known, missing)), starts)
        for slot, end in zip(slots, ends, strict=True):
            num_known[slot] = max(end, num_known[slot])

    def _known(self, token_ids: Seq[int]) -> list[int]:
        """Replace the tokens that the draft does not know by 0."""
        return [token_id if token_id < self.model.vocab_size else 0 for token_id in token_ids]
