"""ModelDrafter: a small language model that drafts token by token, under the target's own sampling parameters.

Its first step feeds every committed token that its cache lacks: the newest one, and after full acceptance also the last
drafted one, which it never saw. The same forward fills that hole without a branch.

Shapes: B rows, T tokens of the first step, K drafted tokens, V vocabulary of the target.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.drafters.base import Drafter
from decoding.model import LanguageModel
from decoding.rows import Rows
from decoding.sampling import probabilities, process_logits
from decoding.sequence import Sequence
from decoding.verify import Draft, draw_draft, pick_shared


class ModelDrafter(Drafter):
    """Drafts with a model of its own, in a slot cache that mirrors the target's."""

    has_model = True

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

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        """Prefill all but the newest token of each sequence."""
        for slot, is_finite in zip(slots, self._is_finite_S[list(slots)].tolist(), strict=True):
            if not is_finite:
                self.reset(slot)
        prompts = [self._known(sequence.token_ids[:-1])[: self._max_len] for sequence in sequences]
        self._model.prefill(slots, prompts)
        for slot, prompt in zip(slots, prompts, strict=True):
            self._num_ingested[slot] = len(prompt)

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
            scores_B1V = process_logits(scores_BV, rows.sampling, rows.history(drafted_BK, step, 1))
            positions_B1 = rows.positions(step, 1)
            is_finite_B &= scores_B1V.amax((1, 2)).isfinite()
            num_finite_B += is_finite_B
            if rows.verification == "rejection":
                drafted.append(draw_draft(scores_B1V, rows.sampling, positions_B1)[:, 0])
                laws.append(probabilities(scores_B1V, rows.sampling)[:, 0])
            else:
                drafted.append(pick_shared(scores_B1V, rows.sampling, positions_B1)[:, 0])
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

    def move(self, source: int, target: int) -> None:
        """Copy a slot's keys and values."""
        assert self._model.cache is not None
        if not self._is_finite_S[target]:
            self.reset(target)
        self._num_ingested[target] = self._num_ingested.pop(source)
        self._model.cache.move(source, target, self._num_ingested[target])
        self._is_finite_S[target] = self._is_finite_S[source]

    def reset(self, slot: int) -> None:
        """Clear the slot's keys and values: a NaN in a masked position would silence it for ever (0 * NaN)."""
        assert self._model.cache is not None
        self._model.cache.zero(slot)
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

    def _known(self, token_ids: list[int]) -> list[int]:
        return [token_id if token_id < self._model.vocab_size else 0 for token_id in token_ids]

    def _known_ids(self, token_ids_B: torch.Tensor) -> torch.Tensor:
        return torch.where(token_ids_B < self._model.vocab_size, token_ids_B, 0)
