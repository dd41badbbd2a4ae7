"""Linear layers in FP8: lines are rounded to float8_e4m3fn and multiplied by float8_e4m3fn weights.

Every program does the same operations in the same order for a line, whatever the other lines are and however many: one
tile, one loop over all inputs. So a line's outputs are the same, bit for bit, in any batch. The tensor cores add the
products of INPUTS inputs; scales and the sum over these steps are float32 operations outside, because the cores of
Hopper keep 14 bits of a running sum (DeepSeek-V3, arXiv 2412.19437, section 3.3.2).

Shapes: N lines, I inputs, O outputs, G groups of inputs, S rows of the weight's scales. Sizes in capitals are known to
the compiler.
"""

import triton
import triton.language as tl


@triton.jit
def quantize(x_NI, quantized_NI, scales_NG, num_inputs, group_size, SMALLEST_SCALE: tl.constexpr, INPUTS: tl.constexpr):
    """Round one group of a line to FP8: program (line, group)."""
    line, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first, end = group * group_size, tl.minimum((group + 1) * group_size, num_inputs)
    largest_I = tl.zeros([INPUTS], tl.float32)
    for start in range(0, group_size, INPUTS):
        input_I = first + start + tl.arange(0, INPUTS)
        x_I = tl.load(x_NI + line * num_inputs + input_I, mask=input_I < end, other=0.0).to(tl.float32)
        # A maximum passes over what is no number. As infinity it makes the scale, and so all outputs, not finite.
        largest_I = tl.maximum(largest_I, tl.where(x_I == x_I, tl.abs(x_I), float("inf")))
    scale = tl.maximum(tl.div_rn(tl.max(largest_I, 0), 448.0), SMALLEST_SCALE)
    tl.store(scales_NG + line * tl.num_programs(1) + group, scale)
    for start in range(0, group_size, INPUTS):
        input_I = first + start + tl.arange(0, INPUTS)
        x_I = tl.load(x_NI + line * num_inputs + input_I, mask=input_I < end, other=0.0).to(tl.float32)
        rounded_I = _to_nearest(tl.div_rn(x_I, scale)).to(tl.float8e4nv)
        tl.store(quantized_NI + line * num_inputs + input_I, rounded_I, mask=input_I < end)


@triton.jit
def _to_nearest(x):
    """Round float32 to the nearest number of float8_e4m3fn, ties to even.

    Triton's own conversion rounds twice for compute capability 8.9 (by way of float16), and ties up when interpreted.
    """
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF  # 3 of 23 bits
    denormal = (x + 24576.0) - 24576.0  # 1.5 * 2^14, near which float32 has steps of 2^-9
    return tl.where(tl.abs(x) < 0.015625, denormal, bits.to(tl.float32, bitcast=True))


@triton.jit(do_not_specialize=["num_lines"])  # it changes from round to round
def multiply(
    x_NI,
    x_scales_NG,
    weight_OI,
    weight_scales_SG,
    bias_O,
    out_NO,
    num_lines,
    num_inputs,
    num_outputs,
    num_groups,
    group_size,  # a multiple of INPUTS, unless there is one group
    outputs_per_scale,
    LINES: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDENED: tl.constexpr,
):
    """Compute x W^T + bias for a tile of lines and outputs; programs that share outputs run one after the other."""
    num_line_tiles = (num_lines + LINES - 1) // LINES
    line_N = tl.program_id(0) % num_line_tiles * LINES + tl.arange(0, LINES)
    output_O = tl.program_id(0) // num_line_tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    input_I = tl.arange(0, INPUTS)
    has_line_N, has_output_O = line_N < num_lines, output_O < num_outputs
    x_at_NI = x_NI + line_N.to(tl.int64)[:, None] * num_inputs + input_I[None]
    weight_at_IO = weight_OI + output_O.to(tl.int64)[None] * num_inputs + input_I[:, None]
    x_scales_at_N = x_scales_NG + line_N * num_groups
    weight_scales_at_O = weight_scales_SG + output_O // outputs_per_scale * num_groups
    total_NO = tl.zeros([LINES, OUTPUTS], tl.float32)
    for first in range(0, num_inputs, INPUTS):
        inside_I = first + input_I < num_inputs
        x = tl.load(x_at_NI + first, mask=has_line_N[:, None] & inside_I[None], other=0.0)
        weight = tl.load(weight_at_IO + first, mask=inside_I[:, None] & has_output_O[None], other=0.0)
        if WIDENED:
            x, weight = x.to(tl.float32), weight.to(tl.float32)
        group = first // group_size
        x_scale_N = tl.load(x_scales_at_N + group, mask=has_line_N, other=0.0)
        weight_scale_O = tl.load(weight_scales_at_O + group, mask=has_output_O, other=0.0)
        total_NO += tl.dot(x, weight) * (x_scale_N[:, None] * weight_scale_O[None])
    if HAS_BIAS:
        total_NO += tl.load(bias_O + output_O, mask=has_output_O, other=0.0).to(tl.float32)[None]
    out_at_NO = out_NO + line_N.to(tl.int64)[:, None] * num_outputs + output_O[None]
    tl.store(out_at_NO, total_NO.to(out_NO.dtype.element_ty), mask=has_line_N[:, None] & has_output_O[None])
