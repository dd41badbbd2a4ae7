"""Scores: the logits of many positions over their temperatures, as numbers made only where somebody looks.

A vocabulary is long and few of its tokens can win, so nobody copies it: the largest score of each block of 64 tokens
is read once, and single scores are fetched by token id. Whatever the path, a score is the same float32 number.

Shapes: P positions (of any row), V vocabulary, N blocks of it, M token ids.
"""

from dataclasses import dataclass

import torch

from decoding.noise import BLOCK

NEVER = float("-inf")
_AT_ONCE = 1 << 20  # scores that fit a cache


@dataclass(frozen=True)
class Scores:
    """The scores of P positions, which stand at `places_P` of some logits."""

    logits: torch.Tensor  # any float dtype, [all positions, V]
    places_P: torch.Tensor
    temperature_P: torch.Tensor
    block_max_PN: torch.Tensor  # float32

    @classmethod
    def over(cls, logits_BJV: torch.Tensor, temperature_B: torch.Tensor) -> "Scores":
        """The scores of all rows and positions, flattened."""
        logits_PV = logits_BJV.flatten(0, 1)
        temperature_P = temperature_B.repeat_interleave(logits_BJV.shape[1])
        places_P = torch.arange(len(logits_PV), device=logits_PV.device)
        # Dividing by a temperature keeps the order, so the largest logit has the largest score.
        block_max_PN = _block_max(logits_PV).float() / temperature_P[:, None]
        return cls(logits_PV, places_P, temperature_P, block_max_PN)

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.logits.shape[-1]

    def of(self, index: torch.Tensor) -> "Scores":
        """The scores of some of these positions."""
        return Scores(self.logits, self.places_P[index], self.temperature_P[index], self.block_max_PN[index])

    def at(self, index: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Single scores, float32; `index` (into P) broadcasts against the ids. Ids beyond the vocabulary have -inf."""
        if self.vocab_size % BLOCK == 0:
            return self.logits[self.places_P[index], token_ids].float() / self.temperature_P[index]
        known_ids = token_ids.clamp(max=self.vocab_size - 1)
        scores = self.logits[self.places_P[index], known_ids].float() / self.temperature_P[index]
        return scores.masked_fill_(token_ids >= self.vocab_size, NEVER)

    def block(self, index: torch.Tensor, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The token ids of whole blocks, with one dimension more than `blocks`, and their scores."""
        token_ids = blocks[..., None] * BLOCK + torch.arange(BLOCK, device=blocks.device)
        return token_ids, self.at(index[..., None], token_ids)

    def dense(self) -> torch.Tensor:
        """All of them, [P, V]."""
        return self.logits[self.places_P].float() / self.temperature_P[:, None]

    def best(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The token ids and scores [P, M] of the `size` best tokens, best first, of equals the highest id first.

        Which of several equals at the very end is among them is left to chance.
        """
        num_positions, num_blocks = self.block_max_PN.shape
        if num_blocks <= 2 * size:
            logits_PM, ids_PM = self._logits().topk(size, dim=-1)
            scores_PM = logits_PM.float() / self.temperature_P[:, None]
        else:  # the best tokens lie in as many blocks at most
            blocks_PM = self.block_max_PN.topk(size, dim=-1, sorted=False).indices
            index_P1 = torch.arange(num_positions, device=blocks_PM.device)[:, None]
            all_ids, all_scores = self.block(index_P1, blocks_PM)
            scores_PM, order_PM = all_scores.flatten(1).topk(size, dim=-1)
            ids_PM = all_ids.flatten(1).gather(-1, order_PM)
        ids_PM, order_PM = ids_PM.sort(dim=-1, descending=True)
        scores_PM, order_PM = scores_PM.gather(-1, order_PM).sort(dim=-1, descending=True, stable=True)
        return ids_PM.gather(-1, order_PM), scores_PM

    def best_probability(self) -> torch.Tensor:
        """The probability [P] of the best token among all, which turns any score into its token's probability.

        A function of the position alone: softmax adds up each position in the same order, whatever stands beside it.
        """
        chunks = torch.arange(len(self.places_P), device=self.places_P.device).split(max(1, _AT_ONCE // self.vocab_size))
        return torch.cat([self.of(chunk).dense().softmax(-1).amax(-1) for chunk in chunks])

    def _logits(self) -> torch.Tensor:
        return self.logits if len(self.places_P) == len(self.logits) else self.logits[self.places_P]


def _block_max(logits_PV: torch.Tensor) -> torch.Tensor:
    end = logits_PV.shape[-1] // BLOCK * BLOCK
    last_P1 = [logits_PV[:, end:].amax(-1, keepdim=True)] if end < logits_PV.shape[-1] else []
    whole_PN = [logits_PV[:, :end].unflatten(-1, (-1, BLOCK)).amax(-1)] if end else []
    return torch.cat([*whole_PN, *last_P1], dim=-1)
