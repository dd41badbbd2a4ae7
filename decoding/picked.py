"""Picked: what a kernel finds at the positions of a round, on a CPU or a GPU."""

from typing import NamedTuple

import torch


class Picked(NamedTuple):
    """The picked tokens of B x J positions, all tensors [B, J]; see `decoding.sampling.picks.Picks`."""

    token_ids_BJ: torch.Tensor  # int64
    best_BJ: torch.Tensor
    second_BJ: torch.Tensor
    score_BJ: torch.Tensor
    is_finite_BJ: torch.Tensor  # whether the best score is a number; else the id is 0 and the numbers mean nothing
