"""MappedDrafter: a draft model with another tokenizer. It reads the text in its own tokens, and drafts common ones.

Before each draft the row's new text is written in the draft's tokens; where the last ones change, the draft's cache is
rolled back to the tokens that stay. Its logits then move to the target's ids of the same tokens, and the tokens that it
lacks have -inf. The noise belongs to the target's ids, so draft and target share it as ever.

A row whose text the draft has no tokens for, or that is too long in them, does not draft.

Shapes: N rows of a step, V token ids of the target, D those of the draft.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch

from decoding.device import to_device
from decoding.drafters.base import swap_entries
from decoding.drafters.idle_rounds import IdleRounds
from decoding.drafters.stepwise import StepwiseDrafter
from decoding.fused.live_weights import LiveWeights
from decoding.network.language_model import LanguageModel
from decoding.sampling.rows import Rows
from decoding.sequence import Sequence
from decoding.vocabulary.retokenized_text import RetokenizedText
from decoding.vocabulary.vocabulary_map import VocabularyMap

_MAX_IN_A_STEP = 32  # tokens that a row may lack and still read in the first step, beside the other rows


@dataclass(frozen=True)
class MappedDraft:
    """A draft model, and its tokens as the target has them."""

    model: LanguageModel
    vocabulary: VocabularyMap
    block_tokens: ClassVar[int] = 0  # each token takes a forward

    @property
    def weights(self) -> LiveWeights:
        """The model's weights."""
        return self.model.weights

    def share(self) -> Self:
        """Return the same draft with a cache of its own."""
        return type(self)(self.model.share(), self.vocabulary)

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        """Measure one forward over `num_tokens` tokens of each row. The cache is overwritten."""
        return self.model.seconds(num_rows, num_tokens)

    def release(self) -> None:
        """Free the cache's memory."""
        self.model.release()


@dataclass
class _Row:
    """What is in a slot of the draft."""

    text: RetokenizedText
    cached: list[int] = field(default_factory=list)  # the draft's tokens whose keys and values are in the slot
    num_guesses: int = 0  # drafted tokens that the last round has read behind them
    num_committed: int = 0  # tokens of the row before that round

    @property
    def num_positions(self) -> int:
        """How many positions of the slot hold keys and values that may be needed."""
        return len(self.cached) + self.num_guesses

    def settle(self, row: Sequence, draft_ids_V: Seq[int]) -> None:
        """Count the guesses of the last round that were accepted as read. The round's last token was no guess."""
        if self.num_guesses:
            accepted = row.token_ids[self.num_committed : -1][: self.num_guesses]
            self.cached += [draft_ids_V[token_id] for token_id in accepted]
            self.num_guesses = 0

    def read_text(self, token_ids: Seq[int]) -> None:
        """Write what is new of these tokens of the target in the draft's, and forget what they change."""
        if new := list(token_ids[self.text.num_read :]):
            kept = self.text.extend(new)
            own, num_same = self.text.token_ids, min(kept, len(self.cached))
            while num_same < min(len(own), len(self.cached)) and own[num_same] == self.cached[num_same]:
                num_same += 1
            del self.cached[num_same:]


class MappedDrafter(StepwiseDrafter):
    """Drafts with a model of another vocabulary, in a slot cache of its own tokens."""

    def __init__(self, draft: MappedDraft, num_slots: int, max_model_len: int) -> None:
        """Allocate a cache of `max_model_len` tokens of the draft for each slot, or of as many as it sees."""
        super().__init__(draft.model, num_slots, max_model_len)
        self.model = draft.model
        self._vocabulary = draft.vocabulary
        self._draft_ids_V = to_device(draft.vocabulary.draft_ids_V, self.model.device, torch.int64)
        self._num_positions = min(max_model_len, self.model.max_positions or max_model_len)
        self._rows: dict[int, _Row] = {}  # by slot
        self._idle_rounds = IdleRounds()
        self.model.allocate(num_slots, max_model_len)

    @property
    def weights(self) -> LiveWeights:
        return self.model.weights

    def renew(self) -> None:
        """Forget all keys and values; the rows' texts in the draft's tokens stay."""
        for row in self._rows.values():
            row.cached, row.num_guesses = [], 0
        self._idle_rounds.begin()

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """Copy the donor's tokens; which of them the new row has is known when its text is read."""
        cached = [] if donor is None else self._row(donor).cached
        if donor is not None:
            self.slots.num_known[donor] = len(cached)
        super().begin(slot, donor, len(cached))
        self._rows[slot] = _Row(RetokenizedText(self._vocabulary), cached[: self.slots.num_known[slot]])

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        """Read the prompts' texts, all but the last token of each, unless drafts are rare: then the next draft does."""
        if self._idle_rounds.are_many:
            return
        for slot, prompt in zip(slots, prompts, strict=True):
            self._row(slot).read_text(prompt)
        self._read(slots)

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        self.prefill(slots, [sequence.token_ids for sequence in sequences])

    def rest(self) -> None:
        self._idle_rounds.rest()

    def swap(self, first: int, second: int) -> None:
        for slot in (first, second):
            self.slots.num_known[slot] = self._row(slot).num_positions
        super().swap(first, second)
        swap_entries(self._rows, first, second)

    def reset(self, slot: int) -> None:
        """Clear the slot's keys and values; the row's text in the draft's tokens stays."""
        super().reset(slot)
        row = self._row(slot)
        row.cached, row.num_guesses = [], 0

    def _limits(self, rows: Rows) -> list[int]:
        """Return how many tokens each row may draft, and write the texts of those that may in the draft's tokens."""
        limits = super()._limits(rows)
        for slot, (sequence, limit) in enumerate(zip(rows.sequences, limits, strict=True)):
            row = self._row(slot)
            row.settle(sequence, self._vocabulary.draft_ids_V)
            if limit:
                row.read_text(sequence.token_ids)
                num_tokens = len(row.text.token_ids)
                is_known = row.text.can_be_read and num_tokens > 0
                limits[slot] = max(0, min(limit, self._num_positions - num_tokens)) if is_known else 0
        return limits

    def _begin_round(self, rows: Rows, limits: Seq[int]) -> None:
        self._idle_rounds.count(sum(limit > 0 for limit in limits), len(limits))

    def _first_logits(self, part: Rows, slots: list[int], drafting: set[int]) -> torch.Tensor:
        self._read([slot for slot in slots if slot in drafting], at_least=_MAX_IN_A_STEP)
        starts, reading = [], []
        for slot, sequence in zip(slots, part.sequences, strict=True):
            row = self._row(slot)
            if slot in drafting:
                starts.append(min(len(row.cached), len(row.text.token_ids) - 1))
                reading.append(row.text.token_ids[starts[-1] :])
                row.cached, row.num_committed = list(row.text.token_ids), len(sequence)
            else:
                starts.append(self._last_place(row))
                reading.append([self._last_token(row)])
        width, device = max(map(len, reading)), self.model.device
        tokens_NT = to_device([tokens + [0] * (width - len(tokens)) for tokens in reading], device)
        last_N1 = to_device([[len(tokens) - 1] for tokens in reading], device)
        lengths = [len(tokens) for tokens in reading]
        return self._of_target_ids(self.model.forward(starts, tokens_NT, last_N1, slots=slots, lengths=lengths))

    def _next_logits(
        self, step: int, part: Rows, slots: list[int], drafting: set[int], newest_N: torch.Tensor
    ) -> torch.Tensor:
        starts, held = [], []
        for slot in slots:
            row = self._row(slot)
            if slot in drafting:
                starts.append(len(row.cached) + step - 1)
                held.append(-1)
                row.num_guesses = step
            else:  # reads its last token again
                starts.append(self._last_place(row))
                held.append(self._last_token(row))
        held_N = to_device(held, self.model.device, torch.int64)
        tokens_N1 = torch.where(held_N < 0, self._draft_ids_V[newest_N].clamp(min=0), held_N)[:, None]
        every_N1 = torch.zeros_like(tokens_N1)
        return self._of_target_ids(self.model.forward(starts, tokens_N1, every_N1, slots=slots))

    def _read(self, slots: Seq[int], at_least: int = 1) -> None:
        """Read all but the last token of the rows that lack `at_least` tokens."""
        missing = []
        for slot in slots:
            row = self._row(slot)
            end = min(len(row.text.token_ids) - 1, self._num_positions)
            if row.text.can_be_read and end - len(row.cached) >= at_least:
                missing.append((slot, len(row.cached), row.text.token_ids[len(row.cached) : end]))
        if missing:
            self.model.prefill(
                [slot for slot, _, _ in missing],
                [tokens for _, _, tokens in missing],
                [start for _, start, _ in missing],
            )
        for slot, _, tokens in missing:
            self._row(slot).cached += tokens

    def _row(self, slot: int) -> _Row:
        return self._rows.setdefault(slot, _Row(RetokenizedText(self._vocabulary)))

    @staticmethod
    def _last_place(row: _Row) -> int:
        return max(0, len(row.cached) - 1)

    @staticmethod
    def _last_token(row: _Row) -> int:
        return row.cached[-1] if row.cached else 0

    def _of_target_ids(self, logits_N1D: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, 1, V] of the target's ids. Those of tokens that the draft lacks are -inf."""
        logits_N1V = logits_N1D.index_select(-1, self._draft_ids_V.clamp(min=0))
        return logits_N1V.masked_fill_(self._draft_ids_V < 0, float("-inf"))
