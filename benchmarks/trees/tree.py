"""Tree: the shape of a draft with two tokens at some places, which tokens of a text it has, and what its rounds take.

Shapes: K places of a draft, N tokens of a text.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decoding.pace.cost_table import CostTable

Ranks = npt.NDArray[np.int64]  # of tokens: how many others a draft finds better in their place


@dataclass(frozen=True)
class Tree:
    """A chain of `depth` tokens; at its first `width` places the draft's second best token stands beside the best."""

    depth: int
    width: int = 0  # 0: a chain
    goes_on: bool = False  # whether each second token has a chain of its own, down to the same depth

    @property
    def kind(self) -> str:
        """The name of its shape, without the depth."""
        siblings = f"{self.width} sibling{'s' if self.width > 1 else ''}{' with chains' if self.goes_on else ''}"
        return siblings if self.width else "chain"

    @property
    def num_tokens(self) -> int:
        """The number of its tokens, each of which is verified."""
        behind = sum(self.depth - place - 1 for place in range(self.width)) if self.goes_on else 0
        return self.depth + self.width + behind

    def has(self, ranks_KN: Ranks) -> npt.NDArray[np.bool_]:
        """Tell which tokens of a text are in the tree [depth, N], by their ranks.

        Entry [k, s] is about token s + k, in a round that begins at token s and has accepted all before it. Entries
        behind a token that the tree lacks mean nothing.
        """
        found = np.zeros((self.depth, ranks_KN.shape[1]), bool)
        in_chain_N, beside_N = np.ones_like(ranks_KN[0], bool), np.zeros_like(ranks_KN[0], bool)
        for place in range(self.depth):
            is_best_N = ranks_KN[place] == 0
            turns_N = in_chain_N & (ranks_KN[place] == 1) & (place < self.width)
            found[place] = (is_best_N & (in_chain_N | beside_N)) | turns_N
            in_chain_N, beside_N = in_chain_N & is_best_N, (beside_N & is_best_N) | (turns_N & self.goes_on)
        return found

    def seconds(self, costs: CostTable, num_rows: int) -> float:
        """Return the time of a round in one process in which each row drafts such a tree: of a chain, `of_round`.

        A tree pays for its tokens and for wider steps of its draft, not for masks, nor for keys and values that move.
        """
        reading = [num_rows * (1 + min(step, self.width) * self.goes_on) for step in range(self.depth)]  # in each step
        num_tokens = num_rows * (1 + self.num_tokens)
        forwards = sum(map(costs.draft_seconds, reading)) + costs.target_seconds(num_tokens)
        return forwards + costs.round_seconds + costs.position_seconds * (sum(reading) + num_tokens)


def trees(most: int) -> list[Tree]:
    """Return chains of up to `most` tokens, the empty one first, and trees as deep with up to three siblings."""
    kinds = [(width, goes_on) for width in (1, 2, 3) for goes_on in (False, True)]
    chains = [Tree(depth) for depth in range(most + 1)]
    return chains + [Tree(depth, *kind) for kind in kinds for depth in range(kind[0], most + 1)]
