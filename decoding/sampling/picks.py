"""Picks: the token with the best noised score at each position, and how clearly it is the best.

    pick = argmax over tokens of   logit / temperature + Gumbel noise      (greedy: without noise)

`pick_tokens` computes this bit for bit, without reading every score and every noise: it bounds each block of 64 tokens
(its largest score plus its largest noise), knows the few tokens that a cut leaves, and draws noise only for tokens that
could still win. Rows of different kinds (greedy, without a cut, with one) are handled apart, so that none pays for what
another needs. The noise is that which drafter and verifier share in a round, drawn once (`RoundNoise`).

Shapes: B sequences, J positions, V vocabulary; P positions (B x J, flattened), N blocks, C of them, M listed tokens.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.device import to_device
from decoding.noise import BLOCK, GumbelNoise, Stream
from decoding.picked import Picks
from decoding.sampling.cuts import NEVER, Scores, Support, find_supports
from decoding.sampling.distribution import SamplingBatch, truncate


class RoundNoise:
    """The shared noise of a round's rows at the positions that it may score, drawn when first asked for."""

    def __init__(
        self, keys_B: torch.Tensor, positions_BJ: torch.Tensor, part_of: "tuple[RoundNoise, torch.Tensor] | None" = None
    ) -> None:
        """Remember the keys and positions. With `part_of` these are rows of another noise, which draws for them."""
        self._keys_B, self._positions_BJ, self._part_of = keys_B, positions_BJ, part_of
        self._drawn: dict[int, GumbelNoise] = {}  # by the size of the vocabulary

    def of(self, vocab_size: int, first: int, num_positions: int) -> GumbelNoise:
        """Return the noise of `num_positions` positions from `first` on."""
        missing = first + num_positions - self._positions_BJ.shape[1]
        if missing > 0:  # a lookup continued behind what was planned
            more = torch.arange(1, missing + 1, device=self._keys_B.device)
            positions_BJ = torch.cat((self._positions_BJ, self._positions_BJ[:, -1:] + more), dim=1)[:, first:]
            return self._draw(vocab_size, positions_BJ)
        return self._upto(vocab_size, first + num_positions).of(slice(None), slice(first, first + num_positions))

    def take(self, rows: Seq[int]) -> "RoundNoise":
        index_N = to_device(rows, self._keys_B.device)
        return RoundNoise(self._keys_B[index_N], self._positions_BJ[index_N], (self, index_N))

    def _upto(self, vocab_size: int, num_positions: int) -> GumbelNoise:
        """Return at least `num_positions`: at first no more (plain decoding needs one), then all that were planned."""
        drawn = self._drawn.get(vocab_size)
        if drawn is not None and drawn.num_positions >= num_positions:
            return drawn
        if self._part_of is not None:
            whole, index_N = self._part_of
            drawn = whole._upto(vocab_size, num_positions).of(index_N)
        elif drawn is None:
            drawn = self._draw(vocab_size, self._positions_BJ[:, :num_positions])
        else:
            drawn = drawn.followed_by(self._draw(vocab_size, self._positions_BJ[:, drawn.num_positions :]))
        self._drawn[vocab_size] = drawn
        return drawn

    def _draw(self, vocab_size: int, positions_BJ: torch.Tensor) -> GumbelNoise:
        return GumbelNoise.draw(self._keys_B, positions_BJ, vocab_size, Stream.SHARED)


_NUM_LEADERS = 8  # blocks whose best tokens set the score to beat
_DENSE = 1 << 15  # scores; for fewer, bounds cost more than they save


def pick_plain(logits_BJV: torch.Tensor, sampling: SamplingBatch, noise: GumbelNoise | None) -> Picks:
    """Pick as the definition says, by scores plus noise of every token: what `pick_tokens` must equal, bit for bit.

    It knows no margin, so no pick is at a border. Tests and the reference compare with it.
    """
    scores_BJV = logits_BJV.float() / sampling.temperature_B[:, None, None]
    noise_BJV = torch.zeros_like(scores_BJV) if noise is None else noise.dense(scores_BJV.shape[-1])
    for kind in sampling.kinds:
        if kind.name == "greedy":
            noise_BJV[slice(None) if kind.rows_R is None else kind.rows_R] = 0.0
    noised_BJV = truncate(scores_BJV, sampling) + noise_BJV
    ids_BJ1 = noised_BJV.argmax(-1, keepdim=True)
    best_BJ, score_BJ = (values_BJV.gather(-1, ids_BJ1)[..., 0] for values_BJV in (noised_BJV, scores_BJV))
    second_BJ = noised_BJV.scatter(-1, ids_BJ1, NEVER).amax(-1)
    is_finite_BJ = logits_BJV.amax(-1).isfinite()
    return Picks(ids_BJ1[..., 0], best_BJ, second_BJ, score_BJ, is_finite_BJ)


def pick_tokens(
    logits_BJV: torch.Tensor, sampling: SamplingBatch, noise: GumbelNoise | None, margin: float = 0.0
) -> Picks:
    """Pick from shaped logits (`shape_logits`); `noise` may be None if no row samples.

    Of equal tokens the one with the lowest id is picked. `margin`, in logits, is how far rounding is taken to move them
    (`cuts.find_supports`).
    """
    num_rows, num_positions, vocab_size = logits_BJV.shape
    scores = Scores.over(logits_BJV, sampling.temperature_B)
    parts: list[tuple[Scores, _FlatPicks]] = []
    for kind in sampling.kinds:
        places_P = kind.places(num_positions)
        own = scores if places_P is None else scores.of(places_P)
        if kind.name == "greedy":
            parts.append((own, _best_two(own)))
        elif noise is None:
            raise ValueError("some rows sample, so noise is needed")
        elif kind.name == "open":
            parts.append((own, _race(own, noise)))
        else:
            for support in find_supports(own, kind.cuts.repeated(num_positions), margin):
                part = own if len(support.index_P) == len(own.places_P) else own.of(support.index_P)
                parts.append((part, _best_of(support, part, noise)))
    ids_P, best_P, second_P, score_P, is_at_border_P = _joined(parts)
    ids_P = ids_P.clamp(max=vocab_size - 1)  # larger only if nothing is finite
    is_finite_P = scores.logits.block_max_PN.amax(-1).isfinite()
    found = ids_P, best_P, second_P, score_P, is_finite_P, is_at_border_P
    return Picks(*(field_P.view(num_rows, num_positions) for field_P in found))


# The ids of P positions, the best and second best noised scores, the picks' own scores, whether one is at a border.
_FlatPicks = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _inside(ids_P: torch.Tensor, best_P: torch.Tensor, second_P: torch.Tensor, score_P: torch.Tensor) -> _FlatPicks:
    """Return picks of which none is at the border of a cut."""
    return ids_P, best_P, second_P, score_P, torch.zeros_like(best_P, dtype=torch.bool)


def _joined(parts: list[tuple[Scores, _FlatPicks]]) -> _FlatPicks:
    if len(parts) == 1 and parts[0][0].is_all:
        return parts[0][1]
    order_P = torch.cat([scores.places_P for scores, _ in parts]).argsort()
    ids_P, best_P, second_P, score_P, is_at_border_P = (
        torch.cat(field)[order_P] for field in zip(*(picks for _, picks in parts), strict=True)
    )
    return ids_P, best_P, second_P, score_P, is_at_border_P


def _best_two(scores: Scores) -> _FlatPicks:
    """Pick without noise: the best block has the best token, and it or another block the second best."""
    if scores.size <= _DENSE:
        return _best_two_of(scores.dense())
    block_P = scores.block_max_PN.max(-1).indices
    scores_PM = scores.block(torch.arange(len(block_P), device=block_P.device), block_P)
    best_P, place_P = scores_PM.max(-1)
    others_P = scores.block_max_PN.scatter(-1, block_P[:, None], NEVER).amax(-1)
    second_P = scores_PM.scatter_(-1, place_P[:, None], NEVER).amax(-1).maximum(others_P)
    return _inside(block_P * BLOCK + place_P, best_P, second_P, best_P)


def _best_two_of(noised_PV: torch.Tensor, scores_PV: torch.Tensor | None = None) -> _FlatPicks:
    """Pick from all noised scores; the argument is overwritten."""
    best_P, ids_P = noised_PV.max(-1)
    score_P = best_P if scores_PV is None else scores_PV.gather(-1, ids_P[:, None])[:, 0]
    return _inside(ids_P, best_P, noised_PV.scatter_(-1, ids_P[:, None], NEVER).amax(-1), score_P)


def _race(scores: Scores, noise: GumbelNoise) -> _FlatPicks:
    """Pick from the whole vocabulary, of which few tokens can win."""
    if scores.size <= _DENSE:
        scores_PV = scores.dense()
        noise_PV = noise.dense(scores.vocab_size).flatten(0, 1)
        return _best_two_of(scores_PV + (noise_PV if scores.is_all else noise_PV[scores.places_P]), scores_PV)
    largest_PN = noise.largest_BJN.flatten(0, 1)
    if not scores.is_all:
        largest_PN = largest_PN[scores.places_P]
    bound_PN = scores.block_max_PN + largest_PN
    floor_P1 = _score_to_beat(scores, noise, bound_PN)[:, None]

    # Drop the blocks whose bound is below the floor, then the tokens that could not reach it with their block's noise.
    index_A, block_A = (bound_PN >= floor_P1).nonzero(as_tuple=True)
    scores_AM = scores.block(index_A, block_A)
    needed_A1 = floor_P1[index_A] - largest_PN[index_A, block_A][:, None]
    alive_Q = (scores_AM >= needed_A1).flatten().nonzero()[:, 0]
    part_Q = alive_Q // BLOCK
    index_Q, scores_Q = index_A[part_Q], scores_AM.take(alive_Q)
    ids_Q = block_A[part_Q] * BLOCK + alive_Q % BLOCK
    noised_Q = scores_Q + noise.at(scores.places_P[index_Q], ids_Q)

    nothing_P = floor_P1.new_full((len(floor_P1),), NEVER)
    best_P = nothing_P.scatter_reduce(0, index_Q, noised_Q, "amax")
    candidate_Q = torch.where(noised_Q == best_P[index_Q], ids_Q, scores.vocab_size)
    ids_P = torch.full_like(scores.places_P, scores.vocab_size).scatter_reduce(0, index_Q, candidate_Q, "amin")
    is_pick_Q = ids_Q == ids_P[index_Q]
    second_P = nothing_P.scatter_reduce(0, index_Q, noised_Q.masked_fill(is_pick_Q, NEVER), "amax")
    score_P = nothing_P.scatter_reduce(0, index_Q, scores_Q.masked_fill(~is_pick_Q, NEVER), "amax")
    return _inside(ids_P, best_P, second_P, score_P)


def _score_to_beat(scores: Scores, noise: GumbelNoise, bound_PN: torch.Tensor) -> torch.Tensor:
    """Return a little less than the second best noised score of a few promising tokens, [P]; always finite."""
    index_P1 = torch.arange(len(bound_PN), device=bound_PN.device)[:, None]
    places_P1 = scores.places_P[:, None]
    block_PC = bound_PN.topk(min(_NUM_LEADERS, bound_PN.shape[-1]), dim=-1, sorted=False).indices
    scores_PCM = scores.block(index_P1, block_PC)
    leader_score_PC, leader_PC = scores_PCM.max(-1)
    leader_PC += block_PC * BLOCK
    holder_PC = noise.holder_of(places_P1, block_PC)
    holder_score_PC = scores_PCM.gather(-1, (holder_PC % BLOCK)[..., None])[..., 0]
    holder_score_PC = holder_score_PC.masked_fill(holder_PC == leader_PC, NEVER)  # count no token twice
    noised_PM = noise.at(places_P1, torch.cat([leader_PC, holder_PC], dim=-1))
    noised_PM += torch.cat([leader_score_PC, holder_score_PC], dim=-1)
    second_P = noised_PM.topk(2, dim=-1).values[:, 1]
    # Bounds hold up to the last bits of a logarithm and of sums. A score of -inf cannot win, so the floor is finite.
    limits = torch.finfo(second_P.dtype)
    second_P = second_P.clamp(min=limits.min / 2, max=limits.max / 2)
    return second_P - 1e-4 * second_P.abs().clamp(min=1.0)


def _best_of(support: Support, scores: Scores, noise: GumbelNoise) -> _FlatPicks:
    """Pick from what a cut leaves: the tokens are few, so noise is drawn for all of them."""
    noised_PM = support.scores_PM + noise.at(scores.places_P[:, None], support.token_ids_PM)
    kept_PM = noised_PM.masked_fill(~support.is_kept_PM, NEVER)
    best_P, ids_P = _best_and_lowest(kept_PM, support, scores.vocab_size)
    is_pick_PM = support.token_ids_PM == ids_P[:, None]
    second_P = kept_PM.masked_fill(is_pick_PM, NEVER).amax(-1)
    score_P = support.scores_PM.masked_fill(~is_pick_PM, NEVER).amax(-1)
    if support.is_tight_PM is support.is_kept_PM:
        return _inside(ids_P, best_P, second_P, score_P)
    loose_PM = noised_PM.masked_fill(~support.is_loose_PM, NEVER)
    is_at_border_P = _best_and_lowest(loose_PM, support, scores.vocab_size)[1] != ids_P
    is_at_border_P |= ~(is_pick_PM & support.is_tight_PM).any(-1)
    return ids_P, best_P, second_P, score_P, is_at_border_P


def _best_and_lowest(noised_PM: torch.Tensor, support: Support, beyond: int) -> tuple[torch.Tensor, torch.Tensor]:
    best_P = noised_PM.amax(-1)
    ids_PM = support.token_ids_PM.masked_fill(noised_PM != best_P[:, None], beyond)
    return best_P, ids_PM.amin(-1)
