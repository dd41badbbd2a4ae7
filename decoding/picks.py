"""Picks: the token with the best noised score at each position, the runner-up's score, and whether rounding could matter.

    pick = argmax over tokens of   logit / temperature + Gumbel noise      (greedy: without noise)

Nothing here is approximate: what the long way over the whole vocabulary would pick is picked, bit for bit. The short
ways know a bound for each block of 64 tokens (its largest score plus its largest noise), and the few tokens that a cut
leaves; noise is drawn only for tokens that could still win. Rows go in three kinds, and none pays for another's.

Shapes: B sequences, J positions, V vocabulary; P positions (B x J, flattened), N blocks, C of them, M listed tokens.
"""

from dataclasses import dataclass

import torch

from decoding.cuts import Support, find_supports
from decoding.noise import BLOCK, GumbelNoise
from decoding.sampling import SamplingBatch
from decoding.scores import NEVER, Scores

_NUM_LEADERS = 8  # blocks whose best tokens say what there is to beat
_DENSE = 1 << 15  # scores; for fewer, bounds cost more than they save


@dataclass(frozen=True)
class Picks:
    """What is picked at B x J positions, all tensors [B, J]."""

    token_ids_BJ: torch.Tensor
    best_BJ: torch.Tensor  # the noised score of the pick, float32
    second_BJ: torch.Tensor  # the best noised score of any other token; -inf where there is none
    score_BJ: torch.Tensor  # the pick's own score, without noise
    is_at_border_BJ: torch.Tensor  # whether a cut that fell a rounding otherwise would change the pick
    is_finite_BJ: torch.Tensor  # whether the best logit is a number


def pick_tokens(
    logits_BJV: torch.Tensor, sampling: SamplingBatch, noise: GumbelNoise | None, margin: float = 0.0
) -> Picks:
    """The picks from shaped logits (`shape_logits`); `noise` may be None if no row samples.

    Of equals the lowest token id is picked. `margin`, in logits, is how far rounding moves them (`cuts.find_supports`).
    """
    num_rows, num_positions, vocab_size = logits_BJV.shape
    scores = Scores.over(logits_BJV, sampling.temperature_B)
    found = _Found.empty(len(scores.places_P), scores.places_P.device)
    for kind in sampling.kinds:
        places_P = kind.places(num_positions)
        own = scores if places_P is None else scores.of(places_P)
        if kind.name == "greedy":
            found.put(own.places_P, *_best_two(own))
        elif noise is None:
            raise ValueError("some rows sample, so noise is needed")
        elif kind.name == "open":
            found.put(own.places_P, *_race(own, noise))
        else:
            for support in find_supports(own, kind.cuts(num_positions), margin):
                found.put(own.places_P[support.index_P], *_best_of(support, own, noise))
    shape = (num_rows, num_positions)
    return Picks(
        found.token_ids_P.clamp(max=vocab_size - 1).view(shape),  # only where nothing is a number
        found.best_P.view(shape),
        found.second_P.view(shape),
        found.score_P.view(shape),
        found.is_at_border_P.view(shape),
        scores.block_max_PN.amax(-1).isfinite().view(shape),
    )


@dataclass(frozen=True)
class _Found:
    """Answers for all positions, filled in kind by kind."""

    token_ids_P: torch.Tensor
    best_P: torch.Tensor
    second_P: torch.Tensor
    score_P: torch.Tensor
    is_at_border_P: torch.Tensor

    @classmethod
    def empty(cls, size: int, device: torch.device) -> "_Found":
        token_ids_P = torch.zeros(size, dtype=torch.int64, device=device)
        numbers_3P = torch.zeros(3, size, device=device)
        return cls(token_ids_P, *numbers_3P, torch.zeros(size, dtype=torch.bool, device=device))

    def put(
        self,
        places: torch.Tensor,
        token_ids: torch.Tensor,
        best: torch.Tensor,
        second: torch.Tensor,
        score: torch.Tensor,
        is_at_border: torch.Tensor | None = None,
    ) -> None:
        self.token_ids_P[places], self.best_P[places] = token_ids, best
        self.second_P[places], self.score_P[places] = second, score
        if is_at_border is not None:
            self.is_at_border_P[places] = is_at_border


_Answer = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # token ids, best, second, score


def _best_two(scores: Scores) -> _Answer:
    """Without noise: the best block has the best token, and it or another block the second best."""
    index_P = torch.arange(len(scores.places_P), device=scores.places_P.device)
    block_P = scores.block_max_PN.max(-1).indices
    ids_PM, scores_PM = scores.block(index_P, block_P)
    best_P, place_P = scores_PM.max(-1)
    others_P = scores.block_max_PN.scatter(-1, block_P[:, None], NEVER).amax(-1)
    second_P = scores_PM.scatter_(-1, place_P[:, None], NEVER).amax(-1).maximum(others_P)
    return ids_PM.gather(-1, place_P[:, None])[:, 0], best_P, second_P, best_P


def _race(scores: Scores, noise: GumbelNoise) -> _Answer:
    """The whole vocabulary, of which few tokens can win."""
    num_positions, num_blocks = scores.block_max_PN.shape
    if num_positions * scores.vocab_size <= _DENSE:
        return _race_of_all(scores, noise)
    largest_PN = noise.largest_BJN.flatten(0, 1)[scores.places_P]
    bound_PN = scores.block_max_PN + largest_PN
    floor_P = _what_to_beat(scores, noise, bound_PN)

    is_alive_PN = (bound_PN >= floor_P[:, None]) & (bound_PN > NEVER)
    index_A, block_A = is_alive_PN.nonzero(as_tuple=True)
    ids_AM, scores_AM = scores.block(index_A, block_A)
    bound_AM = scores_AM + largest_PN[index_A, block_A][:, None]
    is_alive_AM = (bound_AM >= floor_P[index_A][:, None]) & (scores_AM > NEVER)
    alive_Q = is_alive_AM.flatten().nonzero()[:, 0]
    index_Q = index_A[alive_Q // BLOCK]
    ids_Q, scores_Q = ids_AM.take(alive_Q), scores_AM.take(alive_Q)
    noised_Q = scores_Q + noise.at(scores.places_P[index_Q], ids_Q)

    nothing_P = scores.block_max_PN.new_full((num_positions,), NEVER)
    best_P = nothing_P.scatter_reduce(0, index_Q, noised_Q, "amax")
    candidate_Q = torch.where(noised_Q == best_P[index_Q], ids_Q, scores.vocab_size)
    ids_P = torch.full_like(scores.places_P, scores.vocab_size).scatter_reduce(0, index_Q, candidate_Q, "amin")
    is_pick_Q = ids_Q == ids_P[index_Q]
    second_P = nothing_P.scatter_reduce(0, index_Q, noised_Q.masked_fill(is_pick_Q, NEVER), "amax")
    score_P = nothing_P.scatter_reduce(0, index_Q, scores_Q.masked_fill(~is_pick_Q, NEVER), "amax")
    return ids_P, best_P, second_P, score_P


def _race_of_all(scores: Scores, noise: GumbelNoise) -> _Answer:
    """The long way."""
    scores_PV = scores.dense()
    noised_PV = scores_PV + noise.dense(scores.vocab_size).flatten(0, 1)[scores.places_P]
    best_P, ids_P = noised_PV.max(-1)
    second_P = noised_PV.scatter_(-1, ids_P[:, None], NEVER).amax(-1)
    return ids_P, best_P, second_P, scores_PV.gather(-1, ids_P[:, None])[:, 0]


def _what_to_beat(scores: Scores, noise: GumbelNoise, bound_PN: torch.Tensor) -> torch.Tensor:
    """A little less than the second best noised score of a few promising tokens, [P]."""
    num_positions, num_blocks = bound_PN.shape
    index_P1 = torch.arange(num_positions, device=bound_PN.device)[:, None]
    block_PC = bound_PN.topk(min(_NUM_LEADERS, num_blocks), dim=-1, sorted=False).indices
    ids_PCM, scores_PCM = scores.block(index_P1, block_PC)
    leader_score_PC, place_PC = scores_PCM.max(-1)
    leader_PC = ids_PCM.gather(-1, place_PC[..., None])[..., 0]
    holder_PC = noise.holder_BJN.flatten(0, 1)[scores.places_P].gather(-1, block_PC)
    holder_score_PC = scores_PCM.gather(-1, (holder_PC % BLOCK)[..., None])[..., 0]
    holder_score_PC = holder_score_PC.masked_fill(holder_PC == leader_PC, NEVER)  # count nobody twice
    noised_PM = noise.at(scores.places_P[:, None], torch.cat([leader_PC, holder_PC], dim=-1))
    noised_PM += torch.cat([leader_score_PC, holder_score_PC], dim=-1)
    second_P = noised_PM.topk(2, dim=-1).values[:, 1]
    # The bound of a block is its numbers' only up to the last bit of a logarithm.
    return second_P - 1e-5 * second_P.abs().clamp(min=1.0, max=1e30)


def _best_of(support: Support, scores: Scores, noise: GumbelNoise) -> tuple[torch.Tensor, ...]:
    """What a cut leaves. The noise decides among few tokens, so all of them get theirs."""
    places_P1 = scores.places_P[support.index_P][:, None]
    noised_PM = support.scores_PM + noise.at(places_P1, support.token_ids_PM)
    kept_PM = noised_PM.masked_fill(~support.is_kept_PM, NEVER)
    best_P, ids_P = _best_and_lowest(kept_PM, support, scores.vocab_size)
    is_pick_PM = support.token_ids_PM == ids_P[:, None]
    second_P = kept_PM.masked_fill(is_pick_PM, NEVER).amax(-1)
    score_P = support.scores_PM.masked_fill(~is_pick_PM, NEVER).amax(-1)
    loose_PM = noised_PM.masked_fill(~support.is_loose_PM, NEVER)
    is_at_border_P = _best_and_lowest(loose_PM, support, scores.vocab_size)[1] != ids_P
    is_at_border_P |= ~(is_pick_PM & support.is_tight_PM).any(-1)
    return ids_P, best_P, second_P, score_P, is_at_border_P


def _best_and_lowest(noised_PM: torch.Tensor, support: Support, beyond: int) -> tuple[torch.Tensor, torch.Tensor]:
    best_P = noised_PM.amax(-1)
    ids_PM = support.token_ids_PM.masked_fill(noised_PM != best_P[:, None], beyond)
    return best_P, ids_PM.amin(-1)
