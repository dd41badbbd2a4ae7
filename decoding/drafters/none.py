"""NoDrafter: plain decoding, as the empty draft."""

import torch

from decoding.drafters.base import Drafter
from decoding.sampling.rows import Rows
from decoding.sampling.verify import Draft


class NoDrafter(Drafter):
    """Never proposes anything, so that each round yields the target's own next token."""

    def propose(self, rows: Rows) -> Draft:
        """A draft of no tokens."""
        keys_B = rows.sampling.keys_B
        return Draft(keys_B.new_zeros(len(keys_B), 0), torch.zeros_like(keys_B), max_draft_tokens_B=(0,) * len(keys_B))
