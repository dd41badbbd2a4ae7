"""Products of lines with a weight, and norms of lines, by our Triton kernels, in which no line depends on another.

The products of a GPU's library choose another kernel, and so another rounding, for another number of lines: in bfloat16
the text would depend on the batch. `decoding/gpu/kernels/linear.py` adds in an order that the weight alone decides.

Shapes: N lines, I inputs, O outputs, C parts, E numbers of a line.
"""

import torch

from decoding.gpu.kernels import linear as kernels
from decoding.gpu.tiles import NO_TILES, Tiles, Weight

_ADDED_AT_ONCE = 1024  # outputs
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
    (num_lines, num_inputs), num_outputs = x_NI.shape, len(weight_OI)
    if x_NI.stride(-1) != 1:  # the numbers of a line lie end to end
        x_NI = x_NI.contiguous()
    out_NO = x_NI.new_empty(num_lines, num_outputs)
    if not num_lines:
        return out_NO
    weight = Weight(num_outputs, num_inputs, x_NI.dtype, 1 if gate is None else 2)
    tile, num_parts = weight.tile(num_lines, tiles), weight.num_parts
    bias = weight_OI if bias_O is None else bias_O
    gate_OI, gate_bias_O = (weight_OI, None) if gate is None else gate
    added = out_NO if added_NO is None else added_NO.contiguous()
    has = {"HAS_BIAS": bias_O is not None, "HAS_ADDED": added_NO is not None}
    parts, is_whole = out_NO, tile.is_whole or num_parts == 1
    if not is_whole:
        parts = x_NI.new_empty((num_parts, num_lines, num_outputs), dtype=torch.float32)
    kernels.multiply[tile.num_tiles(num_lines, num_outputs), 1 if is_whole else num_parts](
        x_NI, weight_OI, gate_OI, bias, bias if gate_bias_O is None else gate_bias_O, added, parts, num_lines,
        num_outputs, num_inputs, x_NI.stride(0), weight.part_size, HAS_PARTS=is_whole and num_parts > 1,
        IS_GATED=gate is not None, **{name: is_whole and value for name, value in has.items()},
        **tile.options(weight_OI.dtype),
    )  # fmt: skip
    if not is_whole:
        kernels.add_parts[num_lines, -(-num_outputs // _ADDED_AT_ONCE)](
            parts, bias, added, out_NO, num_lines, num_outputs, num_parts, OUTPUTS=_ADDED_AT_ONCE, **has,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out_NO


def rms_norm(x_NE: torch.Tensor, weight_E: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Compute `x / rms(x) * weight` of each line, rounded once; a line's numbers do not depend on the others."""
    x_NE = x_NE.contiguous()
    out_NE = torch.empty_like(x_NE)
    num_lines, size = x_NE.shape
    if num_lines:
        padded_size = 1 << (size - 1).bit_length()
        num_warps = max(1, min(16, padded_size // _NUMBERS_OF_A_WARP))
        kernels.rms_norm[(num_lines,)](
            x_NE, weight_E, out_NE, size, epsilon, PADDED_SIZE=padded_size, num_warps=num_warps, enable_fp_fusion=False
        )
    return out_NE
