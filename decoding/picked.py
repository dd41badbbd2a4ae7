"""Picks: what is found at the positions of a round, by a kernel on a CPU or a GPU, or by torch's own operations."""

from typing import NamedTuple

import torch


class Picks(NamedTuple):
    """The picked tokens of B x J positions, all tensors [B, J]."""

    token_ids_BJ: torch.Tensor  # int64
    best_BJ: torch.Tensor  # the noised score of the pick, float32
    second_BJ: torch.Tensor  # the best noised score of any other token; -inf if there is none
    score_BJ: torch.Tensor  # the pick's own score, without noise
    is_finite_BJ: torch.Tensor  # whether the best score is a number; else the id is 0 and the numbers mean nothing
    is_at_border_BJ: torch.Tensor | None = None  # whether another rounding of a cut would change the pick; None: never

    def replaced(self, rows_N: torch.Tensor, others: "Picks") -> "Picks":
        """Return the same picks, with those of `others` at these rows; no margin was asked for."""
        pairs = zip(self[:5], others[:5], strict=True)
        return Picks(*(own.index_copy(0, rows_N, other) for own, other in pairs))
