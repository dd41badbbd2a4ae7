"""RoundNoise: the noise that drafter and verifier share in one round, drawn once.

Shapes: B rows, J positions.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.device import to_device
from decoding.noise import GumbelNoise, Stream


class RoundNoise:
    """The shared noise of a round's rows at the positions that it may score, drawn when first asked for."""

    def __init__(
        self, keys_B: torch.Tensor, positions_BJ: torch.Tensor, part_of: "tuple[RoundNoise, torch.Tensor] | None" = None
    ) -> None:
        """Remember the keys and positions. With `part_of` these are rows of another noise, which draws for them."""
        self._keys_B, self._positions_BJ, self._part_of = keys_B, positions_BJ, part_of
        self._drawn: dict[int, GumbelNoise] = {}  # by the size of the vocabulary

    def of(self, vocab_size: int, first: int, num_positions: int) -> GumbelNoise:
        """Return the noise of `num_positions` positions from `first` on."""
        missing = first + num_positions - self._positions_BJ.shape[1]
        if missing > 0:  # a lookup continued behind what was planned
            more = torch.arange(1, missing + 1, device=self._keys_B.device)
            positions_BJ = torch.cat((self._positions_BJ, self._positions_BJ[:, -1:] + more), dim=1)[:, first:]
            return self._draw(vocab_size, positions_BJ)
        return self._upto(vocab_size, first + num_positions).of(slice(None), slice(first, first + num_positions))

    def take(self, rows: Seq[int]) -> "RoundNoise":
        index_N = to_device(rows, self._keys_B.device)
        return RoundNoise(self._keys_B[index_N], self._positions_BJ[index_N], (self, index_N))

    def _upto(self, vocab_size: int, num_positions: int) -> GumbelNoise:
        """Return at least `num_positions`: at first no more (plain decoding needs one), then all that were planned."""
        drawn = self._drawn.get(vocab_size)
        if drawn is not None and drawn.num_positions >= num_positions:
            return drawn
        if self._part_of is not None:
            whole, index_N = self._part_of
            drawn = whole._upto(vocab_size, num_positions).of(index_N)
        elif drawn is None:
            drawn = self._draw(vocab_size, self._positions_BJ[:, :num_positions])
        else:
            drawn = drawn.followed_by(self._draw(vocab_size, self._positions_BJ[:, drawn.num_positions :]))
        self._drawn[vocab_size] = drawn
        return drawn

    def _draw(self, vocab_size: int, positions_BJ: torch.Tensor) -> GumbelNoise:
        return GumbelNoise.draw(self._keys_B, positions_BJ, vocab_size, Stream.SHARED)
