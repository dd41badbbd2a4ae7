"""RotaryTables: the rotary embedding of a network's positions, computed once.

Shapes: P positions, N tokens, D head size.
"""

from collections.abc import Callable

import torch

Tables = tuple[torch.Tensor, torch.Tensor]  # cos [P, D], and sin [P, D] with the sign of the rotation


class RotaryTables:
    """Tables that grow with the positions of the caches in use."""

    def __init__(self, rotary: Callable[..., tuple[torch.Tensor, torch.Tensor]], like: torch.Tensor) -> None:
        """Compute by a network's own module, in the dtype and on the device of `like`."""
        self._rotary, self._like = rotary, like
        self._tables_PD: Tables | None = None
        self._earlier: list[Tables] = []  # which recorded graphs may still read

    def reach(self, num_positions: int) -> Tables:
        """Return tables of at least `num_positions` positions."""
        if self._tables_PD is None or len(self._tables_PD[0]) < num_positions:
            positions = torch.arange(num_positions, device=self._like.device)[None]
            cos_1PD, sin_1PD = self._rotary(self._like, positions)
            half = cos_1PD.shape[-1] // 2
            # With the sign of rotate_half in the table, the rotation is x * cos + swapped(x) * sin.
            sin_PD = torch.cat((-sin_1PD[0, :, :half], sin_1PD[0, :, half:]), dim=-1)
            if self._tables_PD is not None:
                self._earlier.append(self._tables_PD)
            self._tables_PD = cos_1PD[0].contiguous(), sin_PD
        return self._tables_PD
