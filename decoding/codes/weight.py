"""CodedWeight: a weight of 4 or 8 bits, with a scale and perhaps a minimum for each group of inputs.

A weight is `scale * code + minimum` in float32, each step rounded; that number is the weight, whatever multiplies it.

Shapes: O outputs, I inputs, G groups of inputs.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Codes(Protocol):
    """The codes of one weight in a file."""

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs (or lines of an embedding) and inputs."""
        ...

    @property
    def num_bytes_saved(self) -> int:
        """The bytes that its codes take less in memory than its float32 numbers."""
        ...

    def read(self) -> "CodedWeight":
        """Return the weight in the order of the network; raise an OSError or ValueError if it cannot be read."""
        ...


@dataclass(frozen=True)
class CodedWeight:
    """The numbers of one weight, in the order of the network's own lines and inputs."""

    codes_OI: NDArray[np.int8]
    scales_OG: NDArray[np.floating]  # float16, or float32 where they are products
    minimums_OG: NDArray[np.floating] | None  # of the same type
    num_bits: int  # in which a code is kept: 4 (0 to 15 with minimums, -8 to 7 without) or 8

    @property
    def group_size(self) -> int:
        """The inputs that share a scale."""
        return int(self.codes_OI.shape[1] // self.scales_OG.shape[1])

    def dequantized(self) -> NDArray[np.float32]:
        """Return the weight [O, I] that the codes stand for."""
        scales_OI = self.scales_OG.astype(np.float32).repeat(self.group_size, axis=1)
        weight_OI: NDArray[np.float32] = scales_OI * self.codes_OI.astype(np.float32)
        if self.minimums_OG is None:
            return weight_OI
        return weight_OI + self.minimums_OG.astype(np.float32).repeat(self.group_size, axis=1)

    @classmethod
    def side_by_side(cls, parts: Seq["CodedWeight"]) -> "CodedWeight":
        """Return one weight with the lines of all parts; parts of different formats become the widest one."""
        if (
            len({(each.num_bits, each.group_size, each.scales_OG.dtype, each.minimums_OG is None) for each in parts})
            > 1
        ):
            parts = [each._widest(min(part.group_size for part in parts)) for each in parts]
        minimums = [each.minimums_OG for each in parts if each.minimums_OG is not None]
        return cls(
            np.concatenate([each.codes_OI for each in parts]),
            np.concatenate([each.scales_OG for each in parts]),
            np.concatenate(minimums) if minimums else None,
            parts[0].num_bits,
        )

    def _widest(self, group_size: int) -> "CodedWeight":
        """Return the same weight with 8 bits, float32 scales and minimums, and smaller groups."""
        times = self.group_size // group_size
        scales_OG = self.scales_OG.astype(np.float32)
        # Minus zero leaves every number as it is, the sign of a zero too.
        minimums_OG = np.full_like(scales_OG, -0.0) if self.minimums_OG is None else self.minimums_OG.astype(np.float32)
        return CodedWeight(self.codes_OI, scales_OG.repeat(times, 1), minimums_OG.repeat(times, 1), 8)
