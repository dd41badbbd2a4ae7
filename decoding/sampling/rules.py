"""Rules: how drafted tokens are drawn, and which of them the target accepts (`verify.py` says why that is lossless).

To draw is to append a token to each row's draft by the draft's logits; a row drafts `num_left` more tokens, this one
among them. To judge is what `judging.verify_rows` says.

Shapes: B rows, N of them in a step of a draft, K drafted tokens, J = K + 1 positions, V vocabulary.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial

import torch

from decoding.choices import Verification
from decoding.sampling.distribution import keep_best, probabilities, process_logits
from decoding.sampling.masks import TokenMasks
from decoding.sampling.rows import Drawn, Rows, Rule
from decoding.sampling.verdicts import Verdicts
from decoding.sampling.verify import Draft, draw_draft, verify_coupled, verify_rejection


def _pick(
    part: Rows, logits_N1V: torch.Tensor, drafted_NK: torch.Tensor, num_left: Seq[int], most_candidates: int
) -> Drawn:
    """Pick under the noise that the target will pick with."""
    picks = part.pick(logits_N1V, drafted_NK, drafted_NK.shape[1])
    is_sound_N = picks.is_finite_BJ[:, 0]
    if part.sampling.forbidden is not None:
        is_sound_N = logits_N1V.amax((1, 2)).isfinite()
    if part.have_grammars:
        picks = part.only_allowed(picks, logits_N1V, drafted_NK, [left > 0 for left in num_left])
    return Drawn(picks.token_ids_BJ[:, 0], picks.is_finite_BJ[:, 0], is_sound_N)


def _accept_what_is_equal(
    rows: Rows,
    draft: Draft,
    uncommitted_BK: torch.Tensor,
    first: int,
    logits_BJV: torch.Tensor,
    close_call: float,
    masks: TokenMasks | None,
) -> Verdicts:
    """Accept the tokens that equal the target's own picks."""
    picks = rows.pick(logits_BJV, uncommitted_BK, first, close_call, masks)
    return verify_coupled(picks, draft, rows.sampling, close_call)


def _draw_by_chance(
    part: Rows, logits_N1V: torch.Tensor, drafted_NK: torch.Tensor, num_left: Seq[int], most_candidates: int
) -> Drawn:
    """Draw from the `most_candidates` best tokens (0: from all), with noise that nothing else reads."""
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


def _accept_by_chance(
    rows: Rows,
    draft: Draft,
    uncommitted_BK: torch.Tensor,
    first: int,
    logits_BJV: torch.Tensor,
    close_call: float,
    masks: TokenMasks | None,
    *,
    is_adjusted: bool = True,
) -> Verdicts:
    """Accept by chance; draw the token behind from what is left of the target's distribution without the draft's."""
    num_positions = logits_BJV.shape[1]
    masked_BJV = logits_BJV if masks is None else masks.apply(logits_BJV)
    scores_BJV = process_logits(masked_BJV, rows.sampling, rows.history(uncommitted_BK, first, num_positions))
    positions_BJ, removed = rows.positions(first, num_positions), taken_out(draft, is_adjusted=is_adjusted)
    verdicts = verify_rejection(scores_BJV, draft, rows.sampling, positions_BJ, removed)
    # Numbers that are not finite must be cleared behind the new token, too.
    return replace(verdicts, is_finite_B=verdicts.is_finite_B & logits_BJV.amax(-1).isfinite().all(-1))


def taken_out(draft: Draft, *, is_adjusted: bool) -> Draft:
    """Return what is taken out of the target's distribution behind a rejection: `unadjusted` takes out nothing."""
    return draft if is_adjusted else replace(draft, num_draft_tokens_B=torch.zeros_like(draft.num_draft_tokens_B))


COUPLED = Rule("coupled", False, _pick, _accept_what_is_equal)
_REJECTION = Rule("rejection", True, _draw_by_chance, _accept_by_chance)
_UNADJUSTED = replace(_REJECTION, name="unadjusted", judge=partial(_accept_by_chance, is_adjusted=False))
RULES: dict[Verification, Rule] = {rule.name: rule for rule in (COUPLED, _REJECTION, _UNADJUSTED)}
