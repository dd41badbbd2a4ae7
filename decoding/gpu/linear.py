"""Products of lines with a weight, and norms of lines, by our Triton kernels, in which no line depends on another.

The products of a GPU's library choose another kernel, and so another rounding, for another number of lines: in bfloat16
the text would depend on the batch. `decoding/gpu/kernels/linear.py` adds in an order that the weight alone decides.

Shapes: N lines, I inputs, O outputs, C parts, E numbers of a line.
"""

from dataclasses import dataclass

import torch

from decoding.gpu.kernels import linear as kernels
from decoding.gpu.tiles import NO_TILES, Tile, Tiles, Weight

_NUMBERS_OF_A_WARP = 512  # of a norm


def multiply(
    x_NI: torch.Tensor,
    weight_OI: torch.Tensor,
    bias_O: torch.Tensor | None,
    added_NO: torch.Tensor | None = None,
    gate: tuple[torch.Tensor, torch.Tensor | None] | None = None,
    tiles: Tiles = NO_TILES,
) -> torch.Tensor:
    """Compute `x W^T + bias + added`, [N, O], rounded once.

    With a gate, a weight G and its bias, it is `silu(x G^T + gate bias) * (x W^T + bias)`; both have a bias, or none.
    The numbers do not depend on the `tiles`.
    """
    weight = _weight(x_NI, weight_OI, 1 if gate is None else 2)
    tile = weight.tile(len(x_NI), tiles)
    if weight.num_parts > 1 and not tile.is_whole:
        return add_parts(sums(x_NI, weight_OI, bias_O, tiles), added_NO)[0]
    out_NO = x_NI.new_empty(len(x_NI), weight.num_outputs)
    _start(x_NI, weight, tile, (weight_OI, bias_O), gate, added_NO, out_NO)
    return out_NO


@dataclass(frozen=True)
class Sums:
    """A product whose parts are not added yet, so that what reads it adds them: in order, then the bias."""

    parts_CNO: torch.Tensor  # float32; one, if the program of a tile has all
    bias_O: torch.Tensor | None
    dtype: torch.dtype  # to which a sum is rounded

    def new_empty(self, *shape: int) -> torch.Tensor:
        """Return a tensor in the dtype of the product."""
        return self.parts_CNO.new_empty(shape, dtype=self.dtype)


def sums(x_NI: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None, tiles: Tiles = NO_TILES) -> Sums:
    """Compute `x W^T` for a kernel that adds its parts and the bias, with the numbers of `multiply`."""
    weight = _weight(x_NI, weight_OI, 1)
    tile = weight.tile(len(x_NI), tiles)
    num_sums = 1 if tile.is_whole else weight.num_parts
    parts_CNO = x_NI.new_empty((num_sums, len(x_NI), weight.num_outputs), dtype=torch.float32)
    _start(x_NI, weight, tile, (weight_OI, None), None, None, parts_CNO)
    return Sums(parts_CNO, bias_O, x_NI.dtype)


def add_parts(
    of: Sums, added_NE: torch.Tensor | None, norm_E: torch.Tensor | None = None, epsilon: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a product and what is added to it [N, E], rounded once, and `rms_norm` of that, if asked."""
    num_parts, num_lines, size = of.parts_CNO.shape
    out_NE = of.new_empty(num_lines, size)
    normed_NE = out_NE if norm_E is None else of.new_empty(num_lines, size)
    if num_lines:
        kernels.add_parts[(num_lines,)](
            of.parts_CNO, out_NE if of.bias_O is None else of.bias_O,
            out_NE if added_NE is None else added_NE.contiguous(), out_NE if norm_E is None else norm_E, out_NE,
            normed_NE, num_lines, size, num_parts, epsilon, HAS_BIAS=of.bias_O is not None,
            HAS_ADDED=added_NE is not None, HAS_NORM=norm_E is not None, **_norm_sizes(size),
        )  # fmt: skip
    return out_NE, normed_NE


def _weight(x_NI: torch.Tensor, weight_OI: torch.Tensor, num_weights: int) -> Weight:
    return Weight(weight_OI.shape[0], weight_OI.shape[1], x_NI.dtype, num_weights)


def _start(
    x_NI: torch.Tensor,
    weight: Weight,
    tile: Tile,
    factors: tuple[torch.Tensor, torch.Tensor | None],
    gate: tuple[torch.Tensor, torch.Tensor | None] | None,
    added_NO: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Start the programs of a product, with a weight [O, I] and its bias, that write `out` [N, O] or parts of it."""
    if x_NI.stride(-1) != 1:  # the numbers of a line lie end to end
        x_NI = x_NI.contiguous()
    num_lines, (weight_OI, bias_O) = len(x_NI), factors
    if not num_lines:
        return
    bias = weight_OI if bias_O is None else bias_O
    gate_OI, gate_bias_O = (weight_OI, None) if gate is None else gate
    num_programs = 1 if tile.is_whole else weight.num_parts
    kernels.multiply[tile.num_tiles(num_lines, weight.num_outputs), num_programs](
        x_NI, weight_OI, gate_OI, bias, bias if gate_bias_O is None else gate_bias_O,
        out if added_NO is None else added_NO.contiguous(), out, num_lines, weight.num_outputs, weight.num_inputs,
        x_NI.stride(0), weight.part_size, HAS_PARTS=tile.is_whole, IS_GATED=gate is not None,
        HAS_BIAS=bias_O is not None, HAS_ADDED=added_NO is not None, **tile.options(weight_OI.dtype),
    )  # fmt: skip


def rms_norm(x_NE: torch.Tensor, weight_E: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Compute `x / rms(x) * weight` of each line, rounded once; a line's numbers do not depend on the others."""
    x_NE = x_NE.contiguous()
    out_NE = torch.empty_like(x_NE)
    num_lines, size = x_NE.shape
    if num_lines:
        kernels.rms_norm[(num_lines,)](x_NE, weight_E, out_NE, size, epsilon, **_norm_sizes(size))
    return out_NE


def _norm_sizes(size: int) -> dict[str, int | bool]:
    """Return the sizes of a program that has a line of this size."""
    padded_size = 1 << (size - 1).bit_length()
    num_warps = max(1, min(16, padded_size // _NUMBERS_OF_A_WARP))
    return {"PADDED_SIZE": padded_size, "num_warps": num_warps, "enable_fp_fusion": False}
