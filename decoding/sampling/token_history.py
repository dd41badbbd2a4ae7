"""TokenHistory: the tokens before each position of some rows.

Shapes: B sequences, J positions, L tokens so far.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TokenHistory:
    """The tokens before each of J positions, which penalties, bad words and min_tokens depend on."""

    token_ids_BL: torch.Tensor  # prompt, output and draft, padded on the right with anything
    prompt_lengths_B: torch.Tensor
    lengths_BJ: torch.Tensor  # number of tokens before position j; the position's own token is the next one
