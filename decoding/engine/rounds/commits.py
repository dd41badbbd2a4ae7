"""Commits: what a round has decided goes into its rows.

The target decides a token from the row alone where its round's logits do not settle it: where rounding could have
decided between the two best candidates, or where they are not finite (the draft's tokens may be the reason). Nothing
then looks at other rows or at a draft.
"""

from decoding.drafters.base import Drafter
from decoding.network.target import Target
from decoding.sampling.rows import Rows, Rule, sampling_batch
from decoding.sampling.token_history import why_nothing_follows
from decoding.sampling.verdicts import RowVerdict
from decoding.sequence import Sequence


class Commits:
    """Verdicts on rows, one row at a time, and the target's decisions where a verdict leaves a token open."""

    def __init__(self, target: Target, drafter: Drafter, rule: Rule) -> None:
        self._target, self._drafter, self._rule = target, drafter, rule
        self.num_rechecks = 0  # close calls that were scored again

    def commit(self, slot: int, sequence: Sequence, verdict: RowVerdict) -> None:
        """Append what a round has decided about the row in this slot; the row fails where no token can follow."""
        tokens, logprobs = [*verdict.draft_token_ids[: verdict.num_accepted], verdict.next_token], verdict.logprobs
        decision: RowVerdict | None = None  # of the token behind `settled` ones
        if not verdict.is_finite:
            # Drawn tokens stand once they are accepted: if they were drawn again, what is written would depend on the
            # draft. Under shared noise the same ones are picked again.
            settled = verdict.num_accepted if self._rule.text_depends_on_draft else 0
            decision = self._score_again(slot, sequence, tokens[:settled])
        elif verdict.first_close_call <= verdict.num_accepted:
            settled = verdict.first_close_call
            self.num_rechecks += 1  # decided by the tokens before it alone: one row, no cache, no draft
            decision = self._target.decide(self._row(sequence), tokens[:settled], sequence.params.logprobs)
        eos_token_ids = self._target.eos_token_ids
        if decision is not None:
            if not decision.is_finite:
                stop_ids, vocab_size = sequence.stop_ids(eos_token_ids), self._target.vocab_size
                sequence.fail(why_nothing_follows(sequence, tokens[:settled], vocab_size, stop_ids))
                return
            tokens = [*tokens[:settled], decision.next_token]
            logprobs = [*logprobs[:settled], *decision.logprobs]
        # Where rounds overlap, draft lengths are planned before the host knows how far a row has come. What is drafted
        # beyond the row's end does not count. An accepted token is the target's own pick, so a cut changes no token.
        num_drafted, num_remaining = verdict.num_drafted, sequence.num_remaining_tokens
        if num_drafted >= num_remaining:
            num_drafted, tokens = num_remaining - 1, tokens[:num_remaining]
        sequence.commit(
            tokens,
            num_draft_tokens=num_drafted,
            eos_token_ids=eos_token_ids,
            logprobs=logprobs,
            draft_token_ids=verdict.draft_token_ids,
        )

    def _score_again(self, slot: int, sequence: Sequence, accepted: list[int]) -> RowVerdict:
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
        return Rows((sequence,), sampling, (0,), self._rule)
