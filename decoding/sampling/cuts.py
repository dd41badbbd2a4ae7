"""Cuts: which tokens top-k, top-p and min-p leave, found among the best few tokens of each position.

Every cut keeps the best tokens down to some rank, so one sorted list serves all cuts. The list is short at first; only
positions for which it is too short get a longer one, at last the whole vocabulary. What is kept does not depend on the
length of the list that found it. The results equal transformers' logits processors
(tests/decoding/sampling/test_distribution.py).

Shapes: P positions, V vocabulary, M listed tokens. The parameters of a position are its row's.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from decoding.sampling.scores import NEVER, Scores

_FIRST_SIZE = 32
_LATER_SIZES = (256, 2048)


@dataclass(frozen=True)
class Cuts:
    """The cuts of P positions; a field is None if no position has that cut."""

    top_k_P: torch.Tensor | None  # 0: none
    top_p_P: torch.Tensor | None  # 1: none
    min_p_P: torch.Tensor | None  # 0: none
    max_top_k: int  # the largest top_k; every position has a top_k, or (max_top_k = 0) none has

    def of(self, index: torch.Tensor) -> "Cuts":
        return self._mapped(lambda cut_P: cut_P[index])

    def repeated(self, num_positions: int) -> "Cuts":
        """Return the cuts of rows, repeated for each of their positions."""
        return self._mapped(lambda cut_P: cut_P.repeat_interleave(num_positions))

    def _mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Cuts":
        top_k_P, top_p_P, min_p_P = (
            None if cut_P is None else change(cut_P) for cut_P in (self.top_k_P, self.top_p_P, self.min_p_P)
        )
        return Cuts(top_k_P, top_p_P, min_p_P, self.max_top_k)


@dataclass(frozen=True)
class Support:
    """The best tokens of some positions, best first, and which of them are kept."""

    index_P: torch.Tensor  # which positions
    token_ids_PM: torch.Tensor
    scores_PM: torch.Tensor
    is_kept_PM: torch.Tensor
    is_loose_PM: torch.Tensor  # kept, or would be kept if rounding fell another way
    is_tight_PM: torch.Tensor  # kept however rounding falls


def find_supports(scores: Scores, cuts: Cuts, margin: float = 0.0) -> Iterator[Support]:
    """Yield supports that together cover every position once.

    Rounding is taken to move a logit of a size up to 10 by `margin`, and larger ones in proportion; divided by the
    temperature, it moves the probability mass of top-p by as much. Near-equal scores can also change ranks: of several
    tokens at the cut, each could be the one that is dropped.
    """
    index_P = torch.arange(len(scores.places_P), device=scores.places_P.device)
    best_prob_P = None if cuts.top_p_P is None or cuts.max_top_k else scores.best_probability()
    for size in _sizes(cuts.max_top_k, scores.vocab_size):
        ids_PM, scores_PM = scores.best(size)
        size_P = (scores_PM[:, 0] * scores.temperature_P).abs()
        slack_P = margin * (size_P / 10).clamp(min=1.0) / scores.temperature_P
        kept_PM = _kept(scores_PM, cuts, best_prob_P, 0 * slack_P)
        if margin:
            loose_PM = _kept(scores_PM, cuts, best_prob_P, slack_P)
            loose_PM = scores_PM >= (_lowest(scores_PM, loose_PM) - slack_P)[:, None]
            border_PM = (scores_PM - _lowest(scores_PM, kept_PM)[:, None]).abs() <= slack_P[:, None]
            border_PM &= border_PM.sum(-1, keepdim=True) > 1
            tight_PM = _kept(scores_PM, cuts, best_prob_P, -slack_P) & ~border_PM
        else:
            loose_PM = tight_PM = kept_PM
        # A list is long enough if no token behind it could be kept or equals its last one.
        last_P = scores_PM[:, -1]
        is_settled_P = (_lowest(scores_PM, loose_PM) > last_P) | (last_P == NEVER)
        if cuts.top_k_P is not None and size < scores.vocab_size:
            is_settled_P &= cuts.top_k_P < size
            if cuts.top_p_P is not None:  # its mass is that of all tokens which top-k keeps, so all must be listed
                kth_P = scores_PM.gather(-1, (cuts.top_k_P.clamp(max=size) - 1)[:, None])[:, 0]
                is_settled_P &= (kth_P > last_P) | (last_P == NEVER) | (cuts.top_p_P == 1)
        if size == scores.vocab_size or bool(is_settled_P.all()):
            yield Support(index_P, ids_PM, scores_PM, kept_PM, loose_PM, tight_PM)
            return
        if bool(is_settled_P.any()):
            settled, fields = is_settled_P, (index_P, ids_PM, scores_PM, kept_PM, loose_PM, tight_PM)
            yield Support(*(field[settled] for field in fields))
        rest = (~is_settled_P).nonzero()[:, 0]
        index_P, scores, cuts = index_P[rest], scores.of(rest), cuts.of(rest)
        best_prob_P = None if best_prob_P is None else best_prob_P[rest]


def _sizes(max_top_k: int, vocab_size: int) -> list[int]:
    first = max(_FIRST_SIZE, -(-(max_top_k + 1) // 16) * 16)  # one more than top_k shows that nothing equals the last
    short = {size for size in (first, *_LATER_SIZES) if first <= size <= vocab_size // 4}
    return [*sorted(short), vocab_size]


def _kept(scores_PM: torch.Tensor, cuts: Cuts, best_prob_P: torch.Tensor | None, slack_P: torch.Tensor) -> torch.Tensor:
    """Return which tokens stay, [P, M], with some slack in top-p's mass and min-p's floor; the best one always does."""
    best_P1, size = scores_PM[:, :1], scores_PM.shape[-1]
    kept_PM = torch.ones_like(scores_PM, dtype=torch.bool)
    if cuts.top_k_P is not None:
        last_P1 = (cuts.top_k_P.clamp(max=size) - 1)[:, None]
        kept_PM = scores_PM >= scores_PM.gather(-1, last_P1)  # equals of the last one stay
    if cuts.top_p_P is not None:
        weights_PM = (scores_PM - best_P1).double().exp_() * kept_PM
        mass_PM = weights_PM.cumsum(-1)
        mass_PM *= (1 / mass_PM[:, -1:]) if best_prob_P is None else best_prob_P[:, None]
        mass_before_PM = torch.nn.functional.pad(mass_PM[:, :-1], (1, 0))
        within_PM = mass_before_PM < (cuts.top_p_P + slack_P)[:, None]
        kept_PM &= within_PM | (cuts.top_p_P == 1)[:, None]
    if cuts.min_p_P is not None:
        floor_P1 = best_P1 + (cuts.min_p_P.log() - slack_P).float()[:, None]
        kept_PM &= scores_PM >= torch.minimum(floor_P1, best_P1)
    kept_PM[:, 0] = True
    return kept_PM


def _lowest(scores_PM: torch.Tensor, kept_PM: torch.Tensor) -> torch.Tensor:
    return scores_PM.masked_fill(~kept_PM, float("inf")).amin(-1)
