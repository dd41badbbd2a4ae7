"""StateRows: where the states of packed rows are, for the kernels that advance them."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class StateRows:
    """The entries of the states of B packed rows with N tokens in all; int64, on the device of the states."""

    row_first: torch.Tensor  # [B + 1]: row b has the tokens row_first[b] up to row_first[b + 1]
    read: torch.Tensor  # [B]: the state before the first token; -1: there is none, and it is zero
    written: torch.Tensor  # [N]: where the state behind the token goes; -1: it is not kept
