"""Tiles of products: the sizes of a program, and the choice of them for a weight and a number of lines.

No size changes the order in which a line's numbers are added (`decoding/gpu/kernels/linear.py`): the steps of a sum and
the parts of the inputs follow from the weight alone. So any tile may be taken, and `decoding/gpu/tile_clock.py` takes
the fastest one.

Shapes: N lines, I inputs, O outputs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from types import MappingProxyType

import torch

from decoding.gpu.available import ROOMY, is_interpreted, shared_memory

LEAST_OUTPUTS = 64  # of a tile: the rows of one instruction of Hopper's tensor cores
LINES = (16, 32, 64, 128, 256, 512, 2048)  # one tile serves all numbers of lines up to each, and more than the last
_MANY = 128  # lines or outputs of a tile where there are many
_ENOUGH_PROGRAMS = 256  # about two for each multiprocessor
_STEP_OF_16_BITS = 64  # inputs of one step of a sum
_LEAST_PART = 512  # inputs: a smaller part costs more to add than it saves
_MOST_NUMBERS = 128  # of its sums that a thread holds in registers, of which it has 255
_MOST_SUMS = 64  # that a thread adds up at once before Hopper, where what it multiplies is in registers, too


@dataclass(frozen=True)
class Tile:
    """The sizes of a program. None of them changes the order in which a line's numbers are added."""

    outputs: int
    lines: int
    num_warps: int
    num_stages: int
    is_whole: bool = False  # whether a program has all parts of its outputs' inputs; else there is one for each part

    def num_tiles(self, num_lines: int, num_outputs: int) -> int:
        """Return how many of them cover these lines and outputs."""
        return -(-num_lines // self.lines) * -(-num_outputs // self.outputs)

    def num_bytes(self, num_weights: int) -> int:
        """Return the fast memory that a program of numbers of 16 bits takes, with one weight or two at once."""
        return self.num_stages * (self.outputs * num_weights + self.lines) * _STEP_OF_16_BITS * 2

    def num_numbers(self, num_sums: int) -> int:
        """Return how many numbers of its sums a thread holds that has as many sums in each place."""
        return num_sums * self.outputs * self.lines // (32 * self.num_warps)

    def options(self, dtype: torch.dtype) -> dict[str, int | bool]:
        """Return the sizes as the kernels take them."""
        sizes = {"LINES": self.lines, "OUTPUTS": self.outputs, "INPUTS": _step(dtype), "WIDENED": is_interpreted()}
        return sizes | {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": False}


# By the number of weights that are multiplied at once, and of lines (one of `LINES`).
Tiles = Mapping[tuple[int, int], Tile]
NO_TILES: Tiles = MappingProxyType({})


@dataclass(frozen=True)
class Weight:
    """What the tiles of a product follow from, beside the number of its lines."""

    num_outputs: int
    num_inputs: int
    dtype: torch.dtype
    num_weights: int = 1  # that are multiplied at once

    @cached_property
    def part_size(self) -> int:
        """The inputs of a part: enough parts for few lines to have many programs, and none too small."""
        num_tiles, num_parts = -(-self.num_outputs // LEAST_OUTPUTS), 1
        if self.num_weights > 1:
            return self.num_inputs
        while num_tiles * num_parts < _ENOUGH_PROGRAMS and self.num_inputs // (2 * num_parts) >= _LEAST_PART:
            num_parts *= 2
        step = _step(self.dtype)
        return -(-self.num_inputs // (num_parts * step)) * step

    @cached_property
    def num_parts(self) -> int:
        """The parts of the inputs, which are added in order."""
        return -(-self.num_inputs // self.part_size)

    def tile(self, num_lines: int, tiles: Tiles) -> Tile:
        """Return the tile that was chosen for this many lines, or a small one that every GPU can run."""
        return tiles.get((self.num_weights, served_with(num_lines))) or self.first_tile(num_lines)

    def first_tile(self, num_lines: int) -> Tile:
        """Return the tile with which all others are compared, a good one on an H100 (benchmarks/results)."""
        if self.dtype.itemsize > 2:  # no tensor cores: a tile's numbers are in registers
            return Tile(LEAST_OUTPUTS, 32, num_warps=8, num_stages=2)
        if num_lines > _MANY and self.num_weights == 1:
            return Tile(_MANY, _MANY, num_warps=8, num_stages=3, is_whole=self.num_parts > 1)
        lines = min(served_with(num_lines), _MANY)
        tile = Tile(LEAST_OUTPUTS, lines, num_warps=4 if lines < _MANY else 8, num_stages=1)
        num_stages = 5 if lines <= 32 else 4 if self.num_parts > 1 else 3
        return replace(tile, num_stages=min(num_stages, shared_memory() // tile.num_bytes(self.num_weights)))

    def tiles(self, num_lines: int) -> Iterator[Tile]:
        """Yield the tiles that may be the fastest for this many lines, the one first with which others are compared."""
        first, num_lines = self.first_tile(num_lines), served_with(num_lines)
        yield first
        if self.dtype.itemsize > 2:
            return
        every_lines = (num_lines,) if num_lines <= _MANY else (_MANY, 2 * _MANY)
        every_outputs = (64, 128, 256) if num_lines >= _MANY else (64, 128)
        # Parts apart keep a GPU busy with few lines; with many, only the traffic of their sums is left.
        ways = (False,) if num_lines < _MANY or self.num_parts == 1 else (False, True)[num_lines > 4 * _MANY :]
        for outputs, lines, num_warps, num_stages, is_whole in product(
            every_outputs, every_lines, (4, 8), (3, 4, 5), ways
        ):
            tile = Tile(outputs, lines, num_warps, num_stages, is_whole)
            num_numbers = tile.num_numbers(self.num_weights + is_whole)
            fits = num_numbers <= _MOST_NUMBERS and tile.num_bytes(self.num_weights) <= shared_memory()
            fits = fits and (shared_memory() >= ROOMY or tile.num_numbers(self.num_weights) <= _MOST_SUMS)
            is_worth = (num_numbers >= 32 or num_warps == 4) and (num_stages < 5 or lines < _MANY)
            if fits and is_worth and tile != first:
                yield tile


def served_with(num_lines: int) -> int:
    """Return the one of `LINES` whose tile serves this many lines."""
    return next((lines for lines in LINES if num_lines <= lines), LINES[-1])


def _step(dtype: torch.dtype) -> int:
    """Return the inputs of one step of a sum."""
    return _STEP_OF_16_BITS if dtype.itemsize <= 2 else 32
