"""Rules: how drafted tokens are drawn, and which of them the target accepts (`verify.py` says why that is lossless).

Shapes: B rows, N of them in a step of a draft, K drafted tokens, J = K + 1 positions, V vocabulary.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import NamedTuple

import torch

from decoding.choices import Verification
from decoding.sampling.distribution import keep_best, probabilities, process_logits
from decoding.sampling.rows import Rows
from decoding.sampling.token_masks import TokenMasks
from decoding.sampling.verdicts import Verdicts
from decoding.sampling.verify import Draft, draw_draft, verify_coupled, verify_rejection


class Drawn(NamedTuple):
    """The tokens of one step of a draft."""

    token_ids_N: torch.Tensor
    is_finite_N: torch.Tensor  # whether a token could be drawn
    is_sound_N: torch.Tensor  # whether the draft's own logits are numbers, whatever is forbidden
    probs_NV: torch.Tensor | None = None  # what each token was drawn from; None: nobody needs it


class Coupled:
    """The target makes its own pick under noise that the drafter shares: the text is that of the target alone."""

    name: Verification = "coupled"
    text_depends_on_draft = False  # whether another draft would make another text, if of the same distribution
    needs_distributions = False  # whether a draft states what its tokens were drawn from

    def draw(
        self, part: Rows, logits_N1V: torch.Tensor, drafted_NK: torch.Tensor, num_left: Seq[int], most_candidates: int
    ) -> Drawn:
        """Pick the next token of each row behind `drafted_NK` by a draft's logits, under the noise of the target.

        A row drafts `num_left` more tokens, this one among them.
        """
        picks = part.pick(logits_N1V, drafted_NK, drafted_NK.shape[1])
        is_sound_N = picks.is_finite_BJ[:, 0]
        if part.sampling.forbidden is not None:
            is_sound_N = logits_N1V.amax((1, 2)).isfinite()
        if part.have_grammars:
            picks = part.only_allowed(picks, logits_N1V, drafted_NK, [left > 0 for left in num_left])
        return Drawn(picks.token_ids_BJ[:, 0], picks.is_finite_BJ[:, 0], is_sound_N)

    def judge(
        self,
        rows: Rows,
        draft: Draft,
        uncommitted_BK: torch.Tensor,
        first: int,
        logits_BJV: torch.Tensor,
        close_call: float,
        masks: TokenMasks | None,
    ) -> Verdicts:
        """Accept what equals the target's picks; the arguments are those of `judging.verify_rows`."""
        picks = rows.pick(logits_BJV, uncommitted_BK, first, close_call, masks)
        return verify_coupled(picks, draft, rows.sampling, close_call)


class Rejection:
    """A token is accepted by chance, and one that is not is replaced: the text has the target's distribution."""

    name: Verification = "rejection"
    text_depends_on_draft = needs_distributions = True

    def draw(
        self, part: Rows, logits_N1V: torch.Tensor, drafted_NK: torch.Tensor, num_left: Seq[int], most_candidates: int
    ) -> Drawn:
        """Draw as many with noise that nothing else reads, from the `most_candidates` best tokens (0: from all)."""
        step = drafted_NK.shape[1]
        masked_N1V = logits_N1V
        if part.have_grammars:
            masked_N1V = part.masked(logits_N1V, drafted_NK, step, [left - 1 for left in num_left])
        scores_N1V = process_logits(masked_N1V, part.sampling, part.history(drafted_NK, step, 1))
        scores_N1V = keep_best(scores_N1V, most_candidates)
        is_finite_N = scores_N1V.amax((1, 2)).isfinite()
        is_sound_N = logits_N1V.amax((1, 2)).isfinite() if part.have_limits else is_finite_N
        tokens_N1 = draw_draft(scores_N1V, part.sampling, part.positions(step, 1), part.positions(0, 1)[:, 0])
        return Drawn(tokens_N1[:, 0], is_finite_N, is_sound_N, probabilities(scores_N1V, part.sampling)[:, 0])

    def judge(
        self,
        rows: Rows,
        draft: Draft,
        uncommitted_BK: torch.Tensor,
        first: int,
        logits_BJV: torch.Tensor,
        close_call: float,
        masks: TokenMasks | None,
    ) -> Verdicts:
        """Accept by chance, and draw from what is left of the target's distribution without the draft's."""
        num_positions = logits_BJV.shape[1]
        masked_BJV = logits_BJV if masks is None else masks.apply(logits_BJV)
        scores_BJV = process_logits(masked_BJV, rows.sampling, rows.history(uncommitted_BK, first, num_positions))
        positions_BJ = rows.positions(first, num_positions)
        verdicts = verify_rejection(scores_BJV, draft, rows.sampling, positions_BJ, self.taken_out(draft))
        # Numbers that are not finite must be cleared behind the new token, too.
        return replace(verdicts, is_finite_B=verdicts.is_finite_B & logits_BJV.amax(-1).isfinite().all(-1))

    def taken_out(self, draft: Draft) -> Draft:
        """Return the draft whose distribution is taken out of the target's before a token replaces a rejected one."""
        return draft


class Unadjusted(Rejection):
    """The lossy rule, to compare with: a rejected token is replaced as if nothing had been drafted."""

    name: Verification = "unadjusted"

    def taken_out(self, draft: Draft) -> Draft:
        return replace(draft, num_draft_tokens_B=torch.zeros_like(draft.num_draft_tokens_B))


Rule = Coupled | Rejection
COUPLED = Coupled()
RULES: dict[Verification, Rule] = {rule.name: rule for rule in (COUPLED, Rejection(), Unadjusted())}
