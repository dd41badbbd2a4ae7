"""The arithmetic of FP8 layers (`decoding/fp8/linear.py`) by our Triton kernels.

The tiles depend on the layer and never on the number of lines. The kernels have been compiled for compute capability
8.9, 9.0, 10.0 and 12.0, and interpreted; no GPU has run them yet, and their sizes follow from arithmetic.

Shapes: N lines, I inputs, O outputs, G groups of inputs, S rows of the weight's scales.
"""

import torch
import triton

from decoding.gpu.available import is_interpreted
from decoding.gpu.kernels import fp8_linear as kernels

_SMALLEST_SCALE = float(torch.finfo(torch.float32).tiny)
_ROUNDED_AT_ONCE = 1024  # inputs
_LINES, _INPUTS = 64, 128  # of a tile
_MANY_OUTPUTS = 8192  # from here on tiles of 64 are enough to occupy the largest GPUs with one tile of lines


def quantize(x_NI: torch.Tensor, group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return lines rounded to FP8 [N, I], and the scales [N, G] by which they must be multiplied (float32)."""
    x_NI = x_NI.contiguous()
    num_lines, num_inputs = x_NI.shape
    num_groups = -(-num_inputs // group_size)
    quantized_NI = torch.empty(x_NI.shape, dtype=torch.float8_e4m3fn, device=x_NI.device)
    scales_NG = torch.empty(num_lines, num_groups, dtype=torch.float32, device=x_NI.device)
    if num_lines:
        at_once = min(triton.next_power_of_2(group_size), _ROUNDED_AT_ONCE)
        kernels.quantize[num_lines, num_groups](
            x_NI, quantized_NI, scales_NG, num_inputs, group_size, SMALLEST_SCALE=_SMALLEST_SCALE, INPUTS=at_once,
            num_warps=max(1, at_once // 256), enable_fp_fusion=False,
        )  # fmt: skip
    return quantized_NI, scales_NG


def multiply(
    quantized_NI: torch.Tensor,
    scales_NG: torch.Tensor,
    weight_OI: torch.Tensor,
    weight_scales_SG: torch.Tensor,
    outputs_per_scale: int,
    group_size: int,
    bias_O: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return `x W^T + b` [N, O] in `dtype`, of lines that `quantize` made. All tensors are contiguous."""
    (num_lines, num_inputs), (num_outputs, num_groups) = quantized_NI.shape, (len(weight_OI), scales_NG.shape[1])
    assert group_size % _INPUTS == 0 or num_groups == 1, "inputs that are multiplied at once share their scales"
    out_NO = torch.empty(num_lines, num_outputs, dtype=dtype, device=quantized_NI.device)
    outputs = 64 if num_outputs >= _MANY_OUTPUTS else 32
    num_tiles = -(-num_lines // _LINES) * -(-num_outputs // outputs)
    if num_tiles:
        kernels.multiply[(num_tiles,)](
            quantized_NI, scales_NG, weight_OI, weight_scales_SG, weight_OI if bias_O is None else bias_O, out_NO,
            num_lines, num_inputs, num_outputs, num_groups, group_size, outputs_per_scale, LINES=_LINES,
            OUTPUTS=outputs, INPUTS=_INPUTS, HAS_BIAS=bias_O is not None, WIDENED=is_interpreted(),
            num_warps=4, num_stages=5, enable_fp_fusion=False,
        )  # fmt: skip
    return out_NO
