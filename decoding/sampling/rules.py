"""Rules: how drafted tokens are drawn, which of them the target accepts, and the token that follows them.

Two rules are lossless. `coupled` (the default): the target makes its own pick under noise that the drafter shared, and
a drafted token is accepted if and only if it equals the pick (Daliri, Musco, Suresh, arXiv 2408.07978). The text is
then a function of target and seed alone. `rejection`: a token is accepted with probability min(1, p/q), else one is
drawn from norm(max(0, p - q)) (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). The text then has
the target's distribution.

A third rule, `unadjusted`, is lossy and is there to compare with: it accepts as `rejection` does, but draws the token
after a rejected one from p itself (the `skip_sample_adjustment` of github.com/romsto/Speculative-Decoding). Then tokens
that the draft prefers come too often. At temperature 0 that changes nothing: p is a point mass on the best token, and a
drafted token is rejected only if it is another one.

Plain decoding is the case of an empty draft; the bonus token is the residual of nothing.

To draw is to append a token to each row's draft by the draft's logits; a row drafts `num_left` more tokens, this one
among them. To judge is what `judging.verify_rows` says.

Shapes: B rows, N of them in a step of a draft, K drafted tokens, J = K + 1 positions, V vocabulary. p is the target's,
q the draft's.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial

import torch

from decoding.choices import Verification
from decoding.cpu.picks import verify_coupled as verify_on_cpu
from decoding.noise import GumbelNoise, Stream, round_keys, uniform
from decoding.picked import Picks
from decoding.sampling.distribution import SamplingBatch, keep_best, probabilities, process_logits
from decoding.sampling.masks import TokenMasks
from decoding.sampling.picks import pick_tokens
from decoding.sampling.rows import Drawn, Rows, Rule
from decoding.sampling.verdicts import Draft, Verdicts, accept_if_equal, count_leading, exists

# The batch's shape changes float32 logits by about 1e-6 of their size. Where the two best candidates lie nearer than
# this (in logits of a size up to 10), rounding could decide, so the row is scored again alone.
_LEAST_MARGIN = 1e-4
# A probe sees a few tokens, and a corpus millions: the margin is this many times the deviation that the probe found.
_MARGIN_OF_DEVIATION = 20
_BYTES_AT_ONCE = 1 << 28  # of probabilities and laws that a draft is judged by
_NUM_LAWS = 6  # float64 numbers of each token that `recovery` and `_inverse_cdf` have at a time


def draw_draft(
    scores_BJV: torch.Tensor, sampling: SamplingBatch, positions_BJ: torch.Tensor, lengths_B: torch.Tensor
) -> torch.Tensor:
    """Draw tokens [B, J] from the draft's distribution with noise that nothing else reads, as rejection requires.

    The noise belongs to the round (`lengths_B`: the rows' committed tokens). A rejected token may have influenced
    something, say which draft lengths pay; the token drafted at its position in the next round is independent of it.
    """
    of_round = replace(sampling, keys_B=round_keys(sampling.keys_B, lengths_B))
    noise = None
    if sampling.samples:
        noise = GumbelNoise.draw(of_round.keys_B, positions_BJ, scores_BJV.shape[-1], Stream.DRAFT)
    return pick_tokens(scores_BJV, of_round.of_scores(), noise).token_ids_BJ


def verify_coupled(picks: Picks, draft: Draft, sampling: SamplingBatch, close_call: float = 0.0) -> Verdicts:
    """Return the verdict of accept-if-equal, given the target's own picks.

    `close_call` is a margin in logits of a size up to 10 (of larger ones, in proportion). Where the best two noised
    scores are closer than that, rounding could have decided, and the verdict reports a close call. It also reports one
    where rounding could drop the pick at a cut, or let in a token that would win (`Picks.is_at_border_BJ`).
    """
    is_finite_B = picks.is_finite_BJ.all(-1)
    if picks.best_BJ.device.type == "cpu":
        drafted = (draft.token_ids_BK, draft.num_draft_tokens_B)
        found = verify_on_cpu(picks, *drafted, sampling.temperature_B, close_call)
        if found is not None:
            return Verdicts(*found, is_finite_B)
    num_accepted_B, next_token_B = accept_if_equal(picks.token_ids_BJ, draft.token_ids_BK, draft.num_draft_tokens_B)
    if close_call:
        first_close_call_B = (close_calls(picks, sampling, close_call).cumsum(-1) == 0).sum(-1)
    else:
        first_close_call_B = torch.full_like(num_accepted_B, picks.token_ids_BJ.shape[1])
    return Verdicts(num_accepted_B, next_token_B, first_close_call_B, is_finite_B)


def close_call_margin(dtype: torch.dtype, deviation: float = 0.0) -> float:
    """Return the margin of close calls for a model whose logits deviate by `deviation` of their size, in logits.

    It is 0 (no call is close) where numbers are not float32: others round too coarsely for a margin.
    """
    return max(_LEAST_MARGIN, _MARGIN_OF_DEVIATION * 10 * deviation) if dtype is torch.float32 else 0.0


def close_calls(picks: Picks, sampling: SamplingBatch, close_call: float) -> torch.Tensor:
    """Tell at which positions [B, J] rounding could have decided the pick; `close_call` as in `verify_coupled`."""
    temperature_B1 = sampling.temperature_B[:, None]
    margin_BJ = (picks.best_BJ - picks.second_BJ) * temperature_B1
    least_BJ = least_margin(picks.score_BJ * temperature_B1, picks.best_BJ * temperature_B1, close_call)
    is_close_BJ = margin_BJ < least_BJ
    return is_close_BJ if picks.is_at_border_BJ is None else is_close_BJ | picks.is_at_border_BJ


def least_margin(logits: torch.Tensor, noised: torch.Tensor, close_call: float) -> torch.Tensor:
    """Return how far the second best noised logits must be from the best, `noised`, so that rounding cannot decide.

    `logits` are the best ones without their noise; `close_call` as in `verify_coupled`.
    """
    ulps = 4 * torch.finfo(noised.dtype).eps * noised.abs()
    return close_call * (logits.abs() / 10).clamp(min=1.0) + ulps


def verify_rejection(
    scores_BJV: torch.Tensor,
    draft: Draft,
    sampling: SamplingBatch,
    positions_BJ: torch.Tensor,
    taken_out: Draft,
) -> Verdicts:
    """Return the verdict of `rejection`, with noise that is a function of key and position.

    `taken_out` is the draft whose q is taken out of p where a token is rejected; that is the draft itself, unless the
    rule is `unadjusted`.

    A row is finite here if at each position up to its new token some token can be drawn. Later positions do
    not count: there everything may be forbidden.
    """
    num_rows, num_positions, vocab_size = scores_BJV.shape
    at_once = max(1, _BYTES_AT_ONCE // (vocab_size * (4 * num_positions + 8 * _NUM_LAWS)))
    verdicts = []
    for rows in (range(start, min(start + at_once, num_rows)) for start in range(0, num_rows, at_once)):
        part = slice(rows.start, rows.stop)
        own = sampling if len(rows) == num_rows else sampling.take(rows)
        verdicts.append(
            _verify_rejection(scores_BJV[part], draft.of(part), taken_out.of(part), own, positions_BJ[part])
        )
    num_accepted_B, next_token_B = (torch.cat(field) for field in zip(*verdicts, strict=True))
    is_behind_BJ = torch.arange(num_positions, device=scores_BJV.device) > num_accepted_B[:, None]
    is_finite_B = (scores_BJV.amax(-1).isfinite() | is_behind_BJ).all(-1)
    return Verdicts(num_accepted_B, next_token_B, torch.full_like(num_accepted_B, num_positions), is_finite_B)


def _verify_rejection(
    scores_BJV: torch.Tensor,
    draft: Draft,
    taken_out: Draft,
    sampling: SamplingBatch,
    positions_BJ: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how many tokens are accepted, and the next token, of rows that fit into memory at once."""
    target_probs_BJV = probabilities(scores_BJV, sampling)
    accept_noise_BK = uniform(sampling.keys_B, positions_BJ[:, :-1], Stream.ACCEPT)
    num_accepted_B = count_leading(accept_noise_BK < acceptance(target_probs_BJV, draft), draft.num_draft_tokens_B)
    recover_noise_BJ = uniform(sampling.keys_B, positions_BJ, Stream.RECOVER)
    stops_B1 = num_accepted_B[:, None]
    recover_BV = recovery(target_probs_BJV, taken_out, stops_B1)[:, 0]
    return num_accepted_B, _inverse_cdf(recover_BV, recover_noise_BJ.gather(1, stops_B1)[:, 0])


def acceptance(target_probs_BJV: torch.Tensor, draft: Draft) -> torch.Tensor:
    """Return the probability that each drafted token is accepted, float64 [B, K]: min(1, p / q)."""
    drafted_BK1 = draft.token_ids_BK[:, :, None]
    p_BK = target_probs_BJV[:, :-1].gather(-1, drafted_BK1)[..., 0].double()
    if draft.probs_BKV is None:
        q_BK = torch.ones_like(p_BK)
    else:
        q_BK = draft.probs_BKV.gather(-1, drafted_BK1)[..., 0].double()
    # q is positive wherever a token was drawn from it; the floor keeps positions without a draft from dividing by 0.
    return (p_BK / q_BK.clamp(min=torch.finfo(q_BK.dtype).tiny)).clamp(max=1.0) * exists(
        draft.token_ids_BK, draft.num_draft_tokens_B
    )


def recovery(target_probs_BJV: torch.Tensor, draft: Draft, stops_BM: torch.Tensor) -> torch.Tensor:
    """Return what the token after a stop at each of these positions is drawn from, float64 [B, M, V].

    It is norm(max(0, p - q)); q is nothing where no token was drafted.
    """
    rows_B1 = torch.arange(len(stops_BM), device=stops_BM.device)[:, None]
    p_BMV = residual_BMV = target_probs_BJV[rows_B1, stops_BM].double()
    num_drafted = draft.token_ids_BK.shape[1]
    if num_drafted:
        drafted_BM = stops_BM.clamp(max=num_drafted - 1)
        is_drafted_BM1 = (stops_BM < draft.num_draft_tokens_B[:, None])[..., None]
        if draft.probs_BKV is None:
            tokens_BM1 = draft.token_ids_BK.gather(1, drafted_BM)[..., None]
            residual_BMV = p_BMV.scatter_add(-1, tokens_BM1, -is_drafted_BM1.double())
        else:
            q_BMV = draft.probs_BKV[rows_B1, drafted_BM].double()
            residual_BMV = p_BMV - q_BMV.masked_fill_(~is_drafted_BM1, 0.0)
    residual_BMV = residual_BMV.clamp(min=0.0)
    mass_BM1 = residual_BMV.sum(-1, keepdim=True)
    # No residual means p == q: the draft is accepted with certainty, and nothing is ever drawn from this row.
    return torch.where(mass_BM1 > 0, residual_BMV / mass_BM1, p_BMV)


def _inverse_cdf(probs_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    cdf_BV = probs_BV.cumsum(-1)
    total_B1 = cdf_BV[:, -1:]
    # Strictly below the total, and right=True: a token of probability zero can never be drawn, at either end.
    below_B1 = torch.minimum(uniform_B[:, None] * total_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    return torch.searchsorted(cdf_BV, below_B1, right=True)[:, 0]


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
    logits_BJV: torch.Tensor,
    close_call: float,
    masks: TokenMasks | None,
) -> Verdicts:
    picks = rows.pick(logits_BJV, draft.token_ids_BK, 0, close_call, masks)
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
    logits_BJV: torch.Tensor,
    close_call: float,
    masks: TokenMasks | None,
    *,
    is_adjusted: bool = True,
) -> Verdicts:
    """Accept by chance; draw the token behind from what is left of the target's distribution without the draft's."""
    num_positions = logits_BJV.shape[1]
    masked_BJV = logits_BJV if masks is None else masks.apply(logits_BJV)
    scores_BJV = process_logits(masked_BJV, rows.sampling, rows.history(draft.token_ids_BK, 0, num_positions))
    # What is taken out of the target's distribution behind a rejection: `unadjusted` takes out nothing.
    removed = draft if is_adjusted else replace(draft, num_draft_tokens_B=torch.zeros_like(draft.num_draft_tokens_B))
    verdicts = verify_rejection(scores_BJV, draft, rows.sampling, rows.positions(0, num_positions), removed)
    # Numbers that are not finite must be cleared behind the new token, too.
    return replace(verdicts, is_finite_B=verdicts.is_finite_B & logits_BJV.amax(-1).isfinite().all(-1))


COUPLED = Rule("coupled", False, _pick, _accept_what_is_equal)
_REJECTION = Rule("rejection", True, _draw_by_chance, _accept_by_chance)
_UNADJUSTED = replace(_REJECTION, name="unadjusted", judge=partial(_accept_by_chance, is_adjusted=False))
RULES: dict[Verification, Rule] = {rule.name: rule for rule in (COUPLED, _REJECTION, _UNADJUSTED)}
