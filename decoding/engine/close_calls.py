"""CloseCalls: a row's next token decided by the row alone, where its round's logits do not settle it.

They do not where rounding could have decided between the two best candidates, or where they are not finite (the draft's
tokens may be the reason). Nothing here looks at other rows or at a draft.
"""

from decoding.drafters.base import Drafter
from decoding.network.target import Target
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling.verdicts import RowVerdict
from decoding.sampling.verify import Verification
from decoding.sequence import Sequence


class CloseCalls:
    """Decisions of the target for one row at a time."""

    def __init__(self, target: Target, drafter: Drafter, verification: Verification) -> None:
        self._target, self._drafter, self._verification = target, drafter, verification
        self.num_rechecks = 0  # close calls that were scored again

    def recheck(self, sequence: Sequence, accepted: list[int]) -> RowVerdict:
        """Decide the token after the accepted ones by the tokens before it alone: one row, no cache, no draft."""
        self.num_rechecks += 1
        return self._target.decide(self._row(sequence), accepted, sequence.params.logprobs)

    def score_again(self, slot: int, sequence: Sequence, accepted: list[int]) -> RowVerdict:
        """Decide the token after a row's own and the accepted ones without the rest of the draft.

        A drafted token that breaks the numbers must not fail the row.

        The row's slots are cleared (a value that is not finite would poison the next row there) and filled anew.
        """
        assert self._target.cache is not None
        self._target.cache.zero(slot)
        self._drafter.reset(slot)
        row, num_logprobs = self._row(sequence), sequence.params.logprobs
        if self._target.is_batch_invariant:  # as any other round would have scored it, bit for bit
            decision = self._target.decide(row, accepted, num_logprobs, in_slot=slot)
        else:
            decision = self._target.decide(row, accepted, num_logprobs)
            if decision.is_finite:
                self._target.prefill(
                    [slot], [[*sequence.token_ids, *accepted]]
                )  # its newest token, too: this round did not feed it
        if decision.is_finite:
            self._drafter.admit([slot], [sequence])
        return decision

    def _row(self, sequence: Sequence) -> Rows:
        sampling = sampling_batch((sequence,), self._target.eos_token_ids, self._target.device)
        return Rows((sequence,), sampling, (0,), self._verification)
