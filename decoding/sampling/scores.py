"""Scores: the logits of many positions over their temperatures, each computed only when it is read.

A vocabulary is long and few of its tokens can win, so it is never copied: the largest score of each block of 64 tokens
is computed once, and single scores are fetched by token id. A score is the same float32 number on every path.

Shapes: P positions (of any row), V vocabulary, N blocks of it, M token ids.
"""

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
