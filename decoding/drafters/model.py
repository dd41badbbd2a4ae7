"""ModelDrafter: a small language model that drafts token by token, under the target's own sampling parameters.

Its first step reads every committed token that its cache lacks: the newest one, and after full acceptance also the last
drafted one, which it never read. The same forward fills that hole without a branch. A row that was left out for some
rounds lacks more tokens; a row that lacks many reads most of them in a forward of its own first.

Shapes: N rows of a step, T tokens of the first step, J positions, V vocabulary of the target.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.device import to_device
from decoding.drafters.idle_rounds import IdleRounds
from decoding.drafters.stepwise import StepwiseDrafter
from decoding.fused.live_weights import LiveWeights
from decoding.network.language_model import LanguageModel
from decoding.sampling.rows import Rows
from decoding.sequence import Sequence

_MAX_IN_A_STEP = 32  # tokens that a row may lack and still read in the first step, beside the other rows


class ModelDrafter(StepwiseDrafter):
    """Drafts with a model of its own, in a slot cache that mirrors the target's."""

    def __init__(
        self, model: LanguageModel, vocab_size: int, num_slots: int, max_model_len: int, most_candidates: int = 0
    ) -> None:
        """Allocate a cache. `vocab_size` is the target's; no other ids are proposed. Ids the draft lacks are read as 0.

        `most_candidates` as in `StepwiseDrafter`.
        """
        max_len = min(max_model_len, model.max_positions or max_model_len)
        super().__init__(model, num_slots, max_len, most_candidates)
        self.model = model
        self._vocab_size = vocab_size
        self.idle_rounds = IdleRounds()
        model.allocate(num_slots, max_model_len)

    @property
    def weights(self) -> LiveWeights:
        return self.model.weights

    def renew(self) -> None:
        """Forget all keys and values: each row is read again before it drafts."""
        self.slots.forget()
        self.idle_rounds.begin()

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        """Read what the slots lack of these tokens, unless drafts are rare now: then the next draft reads them."""
        if not self.idle_rounds.are_many:
            self._complete(slots, prompts)

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        """Read all but the newest token of each sequence, unless `prefill` has done so."""
        self.prefill(slots, [sequence.token_ids[:-1] for sequence in sequences])

    def _begin_round(self, rows: Rows, limits: Seq[int]) -> None:
        for slot, sequence in enumerate(rows.sequences):
            # From the newest token on the cache holds the draft's own guess. This must be forgotten in a round without
            # a draft, too: the next round would take the guess for the committed token.
            self.slots.roll_back(slot, len(sequence) - 1)
        self.idle_rounds.count(sum(limit > 0 for limit in limits), len(limits))

    def _next_logits(
        self, step: int, part: Rows, slots: list[int], drafting: set[int], newest_N: torch.Tensor
    ) -> torch.Tensor:
        starts = [len(sequence) + step - 1 for sequence in part.sequences]
        tokens_N1 = self.known(newest_N)[:, None]
        logits_N1V = self.of_target_ids(self.model.forward(starts, tokens_N1, torch.zeros_like(tokens_N1), slots=slots))
        for slot, start in zip(slots, starts, strict=True):
            if slot in drafting:  # their earlier drafts; rejected guesses are beyond the newest token
                self.slots.num_known[slot] = min(start + 1, self._max_len)
        return logits_N1V

    def catch_up(self, rows: Seq[tuple[int, Sequence]]) -> None:
        """Read all but the newest token of these slots and rows."""
        self._complete([slot for slot, _ in rows], [sequence.token_ids[:-1] for _, sequence in rows])

    def _complete(self, slots: Seq[int], token_ids: Seq[Seq[int]]) -> None:
        """Read what the slots lack of these tokens, as far as the draft sees them."""
        num_known = self.slots.num_known
        starts, ends = [num_known[slot] for slot in slots], [min(len(tokens), self._max_len) for tokens in token_ids]
        missing = [tokens[start:end] for tokens, start, end in zip(token_ids, starts, ends, strict=True)]
        self.model.prefill(slots, list(map(self._known, missing)), starts)
        for slot, end in zip(slots, ends, strict=True):
            num_known[slot] = max(end, num_known[slot])

    def rest(self) -> None:
        """Read no prompt before a row drafts."""
        self.idle_rounds.rest()

    def _first_logits(self, part: Rows, slots: list[int], drafting: set[int]) -> torch.Tensor:
        """Return logits [N, 1, V] after the newest token of the rows that draft, from one forward over what they lack.

        The other rows of the step read as much of what they lack as fits beside them; their logits have no meaning.
        """
        writers = [(slot, row) for slot, row in zip(slots, part.sequences, strict=True) if slot in drafting]
        self.catch_up([(slot, row) for slot, row in writers if len(row) - self.slots.num_known[slot] > _MAX_IN_A_STEP])
        ends = [min(len(sequence), self._max_len) for sequence in part.sequences]
        missing = [end - self.slots.num_known[slot] for slot, end in zip(slots, ends, strict=True)]
        width = max(number for number, slot in zip(missing, slots, strict=True) if slot in drafting)
        # Up to a width of two, all rows read equally many tokens, some again: a rectangle is cheaper than packing.
        counts = [width if width <= 2 else min(max(number, 1), width) for number in missing]
        starts = [
            max(min(self.slots.num_known[slot], end - count), 0)
            for slot, end, count in zip(slots, ends, counts, strict=True)
        ]
        reading = [
            self._known(sequence.token_ids[start : min(start + count, end)])
            for sequence, start, count, end in zip(part.sequences, starts, counts, ends, strict=True)
        ]
        for slot, start, chunk in zip(slots, starts, reading, strict=True):
            self.slots.num_known[slot] = start + len(chunk)
        tokens_NT = to_device([row + [0] * (width - len(row)) for row in reading], self.model.device)
        last_N1 = to_device([[len(row) - 1] for row in reading], self.model.device)
        lengths = None if width <= 2 else [len(row) for row in reading]
        return self.of_target_ids(self.model.forward(starts, tokens_NT, last_N1, slots=slots, lengths=lengths))

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
