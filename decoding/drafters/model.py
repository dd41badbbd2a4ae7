"""ModelDrafter: a small language model that drafts token by token, under the target's own sampling parameters.

Its first step feeds every committed token that its cache lacks: the newest one, and after full acceptance also the last
drafted one, which it never saw. The same forward fills that hole without a branch.

Shapes: B rows, T tokens of the first step, K drafted tokens, V vocabulary of the target.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.model import LanguageModel
from decoding.rows import Rows
from decoding.sampling import probabilities, process_logits
from decoding.sequence import Sequence
from decoding.verify import Draft, draw_draft


class ModelDrafter:
    """Drafts with a model of its own, in a slot cache that mirrors the target's."""

    def __init__(self, model: LanguageModel, vocab_size: int, num_slots: int, max_model_len: int) -> None:
        """`vocab_size` is the target's: ids the target lacks are never proposed, ids the draft lacks are fed as 0."""
        self._model = model
        self._vocab_size = vocab_size
        self._max_len = min(max_model_len, model.max_positions or max_model_len)
        self._num_ingested: dict[int, int] = {}  # positions whose keys and values are sure to be right, per slot
        self._is_finite_S = torch.ones(
            num_slots, dtype=torch.bool, device=model.device
        )  # a slot that was not is silent
        model.allocate(num_slots, max_model_len)

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """Copy as much of the donor's prefix as stands here and is finite; `prefill` computes the rest."""
        assert self._model.cache is not None
        if not self._is_finite_S[slot]:
            self.reset(slot)
        num_standing = 0
        if donor is not None and self._is_finite_S[donor]:
            num_standing = min(num_shared, self._num_ingested.get(donor, 0))
            if not self._model.cache.is_finite(donor, num_standing):
                num_standing = 0
            elif donor != slot:
                self._model.cache.copy(donor, slot, num_standing)
        self._num_ingested[slot] = num_standing

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        """Feed what the slots lack of these tokens, as far as the draft's context reaches."""
        known = [self._known(prompt)[: self._max_len] for prompt in prompts]
        starts = [self._num_ingested.get(slot, 0) for slot in slots]
        missing = [prompt[start:] for prompt, start in zip(known, starts, strict=True)]
        self._model.prefill(slots, missing, starts)
        for slot, prompt in zip(slots, known, strict=True):
            self._num_ingested[slot] = len(prompt)

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        """Feed all but the newest token of each sequence, where `prefill` has not done so."""
        self.prefill(slots, [sequence.token_ids[:-1] for sequence in sequences])

    def propose(self, rows: Rows) -> Draft:
        """Drafted tokens with, for rejection, the law each was drawn from. Rows beyond the draft's context get none."""
        lengths = [len(sequence) for sequence in rows.sequences]
        limits = [
            max(0, min(limit, self._max_len - length))
            for limit, length in zip(rows.num_draft_tokens, lengths, strict=True)
        ]
        keys_B = rows.sampling.keys_B
        for slot, length in enumerate(lengths):
            # What the cache holds from the newest token on is the draft's own guess. Also in a round without a draft:
            # the round after it would take that guess for the committed token.
            self._num_ingested[slot] = min(self._num_ingested[slot], length - 1)
        if not any(limits):
            return Draft(keys_B.new_zeros(len(keys_B), 0), torch.zeros_like(keys_B), most_B=tuple(limits))
        scores_BV = self._ingest(rows, lengths)
        is_finite_B = self._is_finite_S[: len(keys_B)]  # a view: what is found here is remembered for the slots
        num_finite_B = torch.zeros_like(keys_B)
        drafted: list[torch.Tensor] = []
        laws: list[torch.Tensor] = []
        for step in range(max(limits)):
            drafted_BK = torch.stack(drafted, dim=1) if drafted else keys_B.new_zeros(len(keys_B), 0)
            if step:
                starts = [length + step - 1 for length in lengths]
                every_B1 = torch.zeros_like(drafted_BK[:, :1])
                scores_BV = self._target_ids(
                    self._model.forward(starts, self._known_ids(drafted[-1])[:, None], every_B1)
                )
            if rows.verification == "rejection":
                scores_B1V = process_logits(scores_BV, rows.sampling, rows.history(drafted_BK, step, 1))
                is_finite_B &= scores_B1V.amax((1, 2)).isfinite()
                drafted.append(draw_draft(scores_B1V, rows.sampling, rows.positions(step, 1))[:, 0])
                laws.append(probabilities(scores_B1V, rows.sampling)[:, 0])
            else:
                picks = rows.pick(scores_BV, drafted_BK, step)
                is_finite_B &= picks.is_finite_BJ[:, 0]
                drafted.append(picks.token_ids_BJ[:, 0])
            num_finite_B += is_finite_B
        for slot, length in enumerate(lengths):
            # The last drafted token was never fed. Guesses that are rejected stand beyond the next newest token.
            self._num_ingested[slot] = min(length + max(limits) - 1, self._max_len)
        return Draft(
            torch.stack(drafted, dim=1),
            # Only what was drawn after a value that is not finite goes: dropping a token because of itself would bias.
            torch.minimum(torch.tensor(limits, device=keys_B.device), num_finite_B),
            torch.stack(laws, dim=1) if laws else None,
            most_B=tuple(limits),
        )

    def swap(self, first: int, second: int) -> None:
        """Exchange keys and values; to their last position where some are not finite, so that none stays behind."""
        cache = self._model.cache
        assert cache is not None
        slots = [first, second]
        lengths = [self._num_ingested.get(slot, 0) for slot in slots]
        if bool(self._is_finite_S[slots].all()):
            cache.swap(first, second, *lengths)
        else:
            cache.swap(first, second, cache.num_positions + 1, cache.num_positions + 1)
        self._num_ingested[second], self._num_ingested[first] = lengths
        self._is_finite_S[slots] = self._is_finite_S[slots[::-1]]

    def reset(self, slot: int) -> None:
        """Clear the slot's keys and values: a NaN in a masked position would silence it for ever (0 * NaN)."""
        assert self._model.cache is not None
        self._model.cache.zero(slot)
        self._num_ingested[slot] = 0
        self._is_finite_S[slot] = True

    def _ingest(self, rows: Rows, lengths: list[int]) -> torch.Tensor:
        """Logits [B, 1, V] after the newest token, from one forward over what each row's cache lacks."""
        missing = [min(length, self._max_len) - self._num_ingested[slot] for slot, length in enumerate(lengths)]
        num_tokens = max(1, *missing)
        starts = [max(length - num_tokens, 0) for length in lengths]
        tokens = [
            self._known((sequence.token_ids[start:] + [0] * num_tokens)[:num_tokens])
            for sequence, start in zip(rows.sequences, starts, strict=True)
        ]
        device = rows.sampling.keys_B.device
        newest_B1 = torch.tensor([[n - 1 - start] for n, start in zip(lengths, starts, strict=True)], device=device)
        logits_B1V = self._model.forward(starts, torch.tensor(tokens, device=device), newest_B1)
        return self._target_ids(logits_B1V)

    def _target_ids(self, logits_BJV: torch.Tensor) -> torch.Tensor:
        """Logits over the target's vocabulary: ids it lacks are dropped, ids the draft lacks cannot be drawn."""
        num_missing = self._vocab_size - logits_BJV.shape[-1]
        if num_missing > 0:
            return torch.nn.functional.pad(logits_BJV, (0, num_missing), value=float("-inf"))
        return logits_BJV[..., : self._vocab_size]

    def _known(self, token_ids: Seq[int]) -> list[int]:
        return [token_id if token_id < self._model.vocab_size else 0 for token_id in token_ids]

    def _known_ids(self, token_ids_B: torch.Tensor) -> torch.Tensor:
        return torch.where(token_ids_B < self._model.vocab_size, token_ids_B, 0)
