"""Scores and cuts: the logits of positions over their temperatures, and which tokens top-k, top-p and min-p leave.

A vocabulary is long and few of its tokens can win, so it is never copied: the largest score of each block of 64 tokens
is computed once, and single scores are fetched by token id. A score is the same float32 number on every path.

Every cut keeps the best tokens down to some rank, so one sorted list serves all cuts. The list is short at first; only
positions for which it is too short get a longer one, at last the whole vocabulary. What is kept does not depend on the
length of the list that found it. The results equal transformers' logits processors
(tests/decoding/sampling/test_distribution.py).

Shapes: P positions (of any row), V vocabulary, N blocks of it, M listed tokens. The parameters of a position are its
row's.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from decoding.noise import BLOCK

NEVER = float("-inf")
_AT_ONCE = 1 << 18  # scores that fit a CPU's cache
_AT_ONCE_ON_GPU = 1 << 26  # scores: there only memory is a bound, and each part takes launches
_MANY = 512  # in a vocabulary this many times longer than a list, the list is sought in the best blocks


class Logits:
    """Logits [P, V] of any float dtype, and the largest of each block of 64 tokens, read once."""

    def __init__(self, logits_BJV: torch.Tensor) -> None:
        """Flatten the positions of all rows; nothing is read yet."""
        self.values_PV = logits_BJV.flatten(0, 1)

    @cached_property
    def block_max_PN(self) -> torch.Tensor:
        """The largest logit of each block, float32; NaN for a block that holds one."""
        values_PNM = self._whole_blocks_PNM
        largest = [] if values_PNM is None else [values_PNM.amax(-1)]
        if self._rest_PM is not None:
            largest.append(self._rest_PM.amax(-1, keepdim=True))
        return (largest[0] if len(largest) == 1 else torch.cat(largest, dim=-1)).float()

    def block(self, places: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        """Return whole blocks: `places` and `blocks` broadcast, plus a dimension of 64; -inf beyond the vocabulary."""
        values_PNM, rest_PM = self._whole_blocks_PNM, self._rest_PM
        if values_PNM is None:
            assert rest_PM is not None
            return _pad(rest_PM[places])
        if rest_PM is None:
            return values_PNM[places, blocks]
        is_last = blocks == values_PNM.shape[1]
        values = values_PNM[places, blocks.clamp(max=values_PNM.shape[1] - 1)]
        return torch.where(is_last[..., None], _pad(rest_PM)[places], values)

    @cached_property
    def _whole_blocks_PNM(self) -> torch.Tensor | None:
        end = self.values_PV.shape[-1] // BLOCK * BLOCK
        return self.values_PV[:, :end].view(len(self.values_PV), -1, BLOCK) if end else None

    @cached_property
    def _rest_PM(self) -> torch.Tensor | None:
        size = self.values_PV.shape[-1] % BLOCK
        return self.values_PV[:, -size:] if size else None


@dataclass(frozen=True)
class Scores:
    """The scores of P positions, of which `places_P` are the indexes into some logits."""

    logits: Logits
    places_P: torch.Tensor
    temperature_P: torch.Tensor
    is_all: bool  # whether the positions are all that the logits have, in order

    @classmethod
    def over(cls, logits_BJV: torch.Tensor, temperature_B: torch.Tensor) -> "Scores":
        """Return the scores of all rows and positions, flattened."""
        num_rows, num_positions = logits_BJV.shape[:2]
        places_P = torch.arange(num_rows * num_positions, device=logits_BJV.device)
        temperature_P = temperature_B if num_positions == 1 else temperature_B.repeat_interleave(num_positions)
        return cls(Logits(logits_BJV), places_P, temperature_P, is_all=True)

    @property
    def vocab_size(self) -> int:
        return self.logits.values_PV.shape[-1]

    @property
    def size(self) -> int:
        return len(self.places_P) * self.vocab_size

    @cached_property
    def block_max_PN(self) -> torch.Tensor:
        """The largest score of each block. Dividing by a temperature keeps the order, so it is the largest logit's."""
        block_max_PN = self.logits.block_max_PN
        return (block_max_PN if self.is_all else block_max_PN[self.places_P]) / self.temperature_P[:, None]

    def of(self, index: torch.Tensor) -> "Scores":
        return Scores(self.logits, self.places_P[index], self.temperature_P[index], is_all=False)

    def block(self, index: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        """Return whole blocks of positions `index` (into P), float32, with a dimension of 64 more than `blocks`."""
        return self.logits.block(self.places_P[index], blocks).float() / self.temperature_P[index][..., None]

    def dense(self) -> torch.Tensor:
        """Return all scores, float32 [P, V]."""
        return self._values().float() / self.temperature_P[:, None]

    def best(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the token ids and scores [P, M] of the `size` best tokens, best first, of equals the highest id first.

        It is undefined which of several tokens that tie at the very end are listed.
        """
        if size == self.vocab_size:
            scores_PM, order_PM = self.dense().flip(-1).sort(dim=-1, descending=True, stable=True)
            return size - 1 - order_PM, scores_PM
        if size * _MANY > self.vocab_size:
            logits_PM, ids_PM = self._values().topk(size, dim=-1)
            scores_PM = logits_PM.float() / self.temperature_P[:, None]
        else:  # the best tokens lie in as many blocks at most
            blocks_PM = self.block_max_PN.topk(size, dim=-1, sorted=False).indices
            index_P1 = torch.arange(len(blocks_PM), device=blocks_PM.device)[:, None]
            scores_PM, order_PM = self.block(index_P1, blocks_PM).flatten(1).topk(size, dim=-1)
            ids_PM = blocks_PM.gather(-1, order_PM // BLOCK) * BLOCK + order_PM % BLOCK
        # A GPU sorts at once: to ask it whether there are equals takes longer.
        if scores_PM.device.type != "cpu" or bool((scores_PM[:, 1:] == scores_PM[:, :-1]).any()):
            ids_PM, order_PM = ids_PM.sort(dim=-1, descending=True)
            scores_PM, order_PM = scores_PM.gather(-1, order_PM).sort(dim=-1, descending=True, stable=True)
            ids_PM = ids_PM.gather(-1, order_PM)
        return ids_PM, scores_PM

    def best_probability(self) -> torch.Tensor:
        """Return the probability [P] of the best token among all, which turns any score into a probability.

        It is a function of the position alone: softmax sums each position in the same order in any batch.
        """
        index_P = torch.arange(len(self.places_P), device=self.places_P.device)
        at_once = _AT_ONCE if index_P.device.type == "cpu" else _AT_ONCE_ON_GPU
        chunks = torch.split(index_P, max(1, at_once // self.vocab_size))
        parts = [self] if len(chunks) == 1 else [self.of(chunk) for chunk in chunks]
        return torch.cat([part.dense().softmax(-1).amax(-1) for part in parts])

    def _values(self) -> torch.Tensor:
        return self.logits.values_PV if self.is_all else self.logits.values_PV[self.places_P]


def _pad(rest: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(rest, (0, BLOCK - rest.shape[-1]), value=NEVER)


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
