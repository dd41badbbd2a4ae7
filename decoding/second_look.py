"""SecondLook: a row's next token decided by the row alone, where its round's logits do not settle it.

That is so where rounding could have decided between the two best candidates, and where the logits are not finite (the
draft's tokens may be the reason). Nothing here looks at other rows or at a draft.

Shapes: K accepted tokens, V vocabulary.
"""

import torch

from decoding.device import to_device
from decoding.drafters.base import Drafter
from decoding.model import LanguageModel
from decoding.rows import Rows, sampling_batch
from decoding.sampling import process_logits
from decoding.sequence import Sequence
from decoding.verify import Draft, Verification, verify_rejection


class SecondLook:
    """Scores and decides for one row at a time."""

    def __init__(self, target: LanguageModel, drafter: Drafter, verification: Verification) -> None:
        """Of the engine that has these."""
        self._target, self._drafter, self._verification = target, drafter, verification
        self.num_rechecks = 0  # close calls that were scored again

    def recheck(self, sequence: Sequence, accepted: list[int]) -> list[int]:
        """The accepted tokens and the one after them, decided by the sequence alone: one row, no cache, no draft.

        The decision is then a function of the tokens before it, whatever batch or draft this round had.
        """
        self.num_rechecks += 1
        return [*accepted, self.decide(sequence, accepted, self._target.plain_logits(sequence.token_ids + accepted))]

    def score_again(self, slot: int, sequence: Sequence) -> torch.Tensor:
        """Logits [1, V] after a row's tokens, without the draft: a guess that breaks the numbers must not fail it.

        Its slots are cleared (a value that is not finite would poison whatever comes next there) and filled anew.
        """
        assert self._target.cache is not None
        self._target.cache.zero(slot)
        self._drafter.reset(slot)
        if self._target.is_batch_invariant:  # as any other round would have scored it, bit for bit
            logits_V = self._logits_in(slot, sequence)
        else:
            logits_V = self._target.plain_logits(sequence.token_ids)
            if logits_V.amax().isfinite():
                self._target.prefill([slot], [sequence.token_ids])  # its newest token, too: this round did not feed it
        if logits_V.amax().isfinite():
            self._drafter.admit([slot], [sequence])
        return logits_V[None]

    def decide(self, sequence: Sequence, accepted: list[int], logits_V: torch.Tensor) -> int:
        """The token after `accepted`, as the verifier decides it where there is no draft."""
        sampling = sampling_batch((sequence,), self._target.eos_token_ids, self._target.device)
        rows = Rows((sequence,), sampling, (0,), self._verification)
        accepted_1K = to_device([accepted], self._target.device, torch.int64)
        logits_11V = logits_V[None, None]
        if self._verification == "coupled":
            return int(rows.pick(logits_11V, accepted_1K, len(accepted)).token_ids_BJ)
        scores_11V = process_logits(logits_11V, rows.sampling, rows.history(accepted_1K, len(accepted), 1))
        nothing = Draft(accepted_1K[:, :0], torch.zeros_like(rows.sampling.keys_B))
        verdict = verify_rejection(scores_11V, nothing, rows.sampling, rows.positions(len(accepted), 1))
        return int(verdict.next_token_B)

    def _logits_in(self, slot: int, sequence: Sequence) -> torch.Tensor:
        """Logits [V] after a row's tokens, all of which are read into its slot."""
        *before, newest = sequence.token_ids
        self._target.prefill([slot], [before])
        newest_11 = to_device([[newest]], self._target.device)
        return self._target.forward([len(before)], newest_11, torch.zeros_like(newest_11), slots=[slot])[0, 0]
