"""FP8 arithmetic by torch's own operations: the definition that the Triton kernels are tested against.

Activations are rounded to float8_e4m3fn, scaled so that the largest of a group becomes 448, as DeepSeek-V3 does it
(arXiv 2412.19437, section 3.3). A product of two such numbers is a multiple of 2^-18 below 2^18, so float64 adds 2^17
of them exactly, in any order: only scales and the sum over groups are rounded. So a line's outputs are the same, bit
for bit, whatever lines stand beside it.

It runs wherever torch does. A CPU has no FP8 instructions and converts the weights anew in each forward, which takes
seconds a billion weights.

Shapes: N lines, I inputs, O outputs, G groups of C inputs each (the last one may be shorter), S rows of scales.
"""

import torch

LARGEST = 448.0  # of float8_e4m3fn
SMALLEST_SCALE = torch.finfo(torch.float32).tiny  # so that a group of zeros is not divided by zero


def quantize(x_NI: torch.Tensor, group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return lines rounded to FP8 [N, I], and the scales [N, G] by which they must be multiplied (float32).

    The scale of a group that holds a number that is not finite is not finite either.
    """
    num_lines, num_inputs = x_NI.shape
    padded_NI = torch.nn.functional.pad(x_NI.float(), (0, -num_inputs % group_size))
    x_NGC = padded_NI.view(num_lines, -1, group_size)
    scales_NG = (x_NGC.abs().amax(-1) / LARGEST).clamp(min=SMALLEST_SCALE)
    quantized_NGC = (x_NGC / scales_NG[:, :, None]).to(torch.float8_e4m3fn)
    return quantized_NGC.view(num_lines, -1)[:, :num_inputs].contiguous(), scales_NG


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
    """Return `x W^T + b` [N, O] in `dtype`, of lines that `quantize` made; output o has row o // outputs_per_scale."""
    num_outputs = len(weight_OI)
    total_NO = scales_NG.new_zeros(len(quantized_NI), num_outputs, dtype=torch.float64)
    for group in range(scales_NG.shape[1]):
        inputs = slice(group * group_size, (group + 1) * group_size)
        sums_NO = quantized_NI[:, inputs].double() @ weight_OI[:, inputs].double().t()
        weight_scale_O = weight_scales_SG[:, group].repeat_interleave(outputs_per_scale)[:num_outputs]
        total_NO += sums_NO * (scales_NG[:, group, None].double() * weight_scale_O)
    if bias_O is not None:
        total_NO += bias_O
    return total_NO.to(dtype)


def dequantize(
    weight_OI: torch.Tensor, scales_SG: torch.Tensor, outputs_per_scale: int, group_size: int
) -> torch.Tensor:
    """Return the weight [O, I] that FP8 numbers and their scales stand for, in float32."""
    num_outputs, num_inputs = weight_OI.shape
    scales_OG = scales_SG.float().repeat_interleave(outputs_per_scale, 0)[:num_outputs]
    return weight_OI.float() * scales_OG.repeat_interleave(group_size, 1)[:, :num_inputs]
