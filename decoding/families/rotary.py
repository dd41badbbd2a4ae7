"""Rotary tables: what the positions of a text do to queries and keys, x * cos + swapped(x) * sin.

Shapes: P positions, N tokens, X heads, D head size.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch.nn.functional import pad

Tables = tuple[torch.Tensor, torch.Tensor]  # rotary: cos [P, D], and sin [P, D] with the sign of the rotation
# Which numbers turn together: the first half with the second, or each with the one beside it (interleaved). Where the
# tables of a network's module do not lie like that, they are laid out so.
Pairs = Literal["halves", "interleaved", "interleaved, tables in halves"]


class RotaryTables:
    """Tables that grow with the positions of the caches in use."""

    def __init__(
        self,
        rotary: Callable[..., tuple[torch.Tensor, torch.Tensor]] | None,
        like: torch.Tensor,
        head_size: int = 0,
        *,
        pairs: Pairs = "halves",
    ) -> None:
        """Compute by a network's own module, in the dtype and on the device of `like`; None: nothing turns.

        Where only the first numbers of a head turn, the tables leave the others of its `head_size` as they are.
        """
        self._rotary, self._like = rotary, like
        self._head_size, self._pairs = head_size, pairs
        self._tables_PD: Tables | None = None
        self._earlier: list[Tables] = []  # which recorded graphs may still read

    def reach(self, num_positions: int) -> Tables:
        """Return tables of at least `num_positions` positions."""
        if self._tables_PD is None or len(self._tables_PD[0]) < num_positions:
            if self._tables_PD is not None:
                self._earlier.append(self._tables_PD)
            self._tables_PD = self._computed(num_positions)
        return self._tables_PD

    @property
    def num_turned(self) -> int:
        """The numbers of a head that turn."""
        return 0 if self._rotary is None else self._rotary(self._like, self._like.new_zeros(1, 1))[0].shape[-1]

    def _computed(self, num_positions: int) -> Tables:
        if self._rotary is None:
            ones_PD = self._like.new_ones(num_positions, self._head_size)
            return ones_PD, torch.zeros_like(ones_PD)
        positions = torch.arange(num_positions, device=self._like.device)[None]
        cos_1PD, sin_1PD = self._rotary(self._like, positions)
        cos_PD, sin_PD = cos_1PD[0].to(self._like.dtype).contiguous(), sin_1PD[0].to(self._like.dtype)
        # With the sign of the rotation in the table, it is x * cos + swapped(x) * sin.
        if self._pairs == "interleaved, tables in halves":
            cos_PD, sin_PD = (each.chunk(2, dim=-1)[0].repeat_interleave(2, dim=-1) for each in (cos_PD, sin_PD))
        if self._pairs != "halves":
            sin_PD = torch.stack((-sin_PD[:, ::2], sin_PD[:, 1::2]), dim=-1).flatten(1)
        else:
            half = cos_PD.shape[-1] // 2
            sin_PD = torch.cat((-sin_PD[:, :half], sin_PD[:, half:]), dim=-1)
        num_still = max(0, self._head_size - cos_PD.shape[-1])
        return (pad(cos_PD, (0, num_still), value=1.0), pad(sin_PD, (0, num_still))) if num_still else (cos_PD, sin_PD)


def swapped(x_NXD: torch.Tensor, half: int) -> torch.Tensor:
    """Return in the place of each number the one that turns with it, `half` places away (0: half of the head)."""
    if half == 1:
        return x_NXD.view(*x_NXD.shape[:-1], -1, 2).flip(-1).flatten(-2)
    if not half or 2 * half == x_NXD.shape[-1]:
        return x_NXD.roll(x_NXD.shape[-1] // 2, -1)
    return torch.cat((x_NXD[..., half : 2 * half], x_NXD[..., :half], x_NXD[..., 2 * half :]), dim=-1)
