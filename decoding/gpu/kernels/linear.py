"""Products of lines with a weight, and norms of lines, in which a line's numbers do not depend on the other lines.

The inputs are divided into parts of a size that the weight alone decides. The sum over a part runs in steps of the same
number of inputs, and the sums of the parts are added in order. So it makes no difference, bit for bit, whether one
program computes all parts (`multiply`), as pays for many lines, or each part has a program (`multiply_part` and
`add_parts`), as pays for few, which would keep too few programs busy to read the weight at the speed of the memory. The
outputs are the rows of the tensor cores' product and the lines are its columns, so that few lines waste nothing and
many run the same instructions.

Shapes: N lines, I inputs, O outputs, C parts, E numbers of a line. Sizes in capitals are known to the compiler.
"""

import triton
import triton.language as tl

# It changes from round to round: compiling anew for a 1, or for a multiple of 16, would take a second in a round.
VARYING = ["num_lines"]


@triton.jit
def _part(
    x_NI,
    weight_OI,
    line_N,
    output_O,
    num_lines,
    num_outputs,
    num_inputs,
    line_stride,
    first_input,
    part_size,
    LINES: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    WIDENED: tl.constexpr,
):
    """Return the sums [OUTPUTS, LINES] over the inputs of one part."""
    sum_ON = tl.zeros([OUTPUTS, LINES], tl.float32)
    input_I = tl.arange(0, INPUTS)
    x_at_NI = x_NI + line_N.to(tl.int64)[:, None] * line_stride + input_I[None]
    weight_at_OI = weight_OI + output_O.to(tl.int64)[:, None] * num_inputs + input_I[None]
    has_line_N1, has_output_O1 = (line_N < num_lines)[:, None], (output_O < num_outputs)[:, None]
    for first in range(first_input, tl.minimum(first_input + part_size, num_inputs), INPUTS):
        inside_1I = (first + input_I < num_inputs)[None]
        x = tl.load(x_at_NI + first, mask=has_line_N1 & inside_1I, other=0.0)
        weight = tl.load(weight_at_OI + first, mask=has_output_O1 & inside_1I, other=0.0)
        if WIDENED:
            x, weight = x.to(tl.float32), weight.to(tl.float32)
        sum_ON = tl.dot(weight, tl.trans(x), sum_ON, input_precision="ieee")
    return sum_ON


@triton.jit
def _tile(num_lines, LINES: tl.constexpr, OUTPUTS: tl.constexpr):
    """Return the lines and outputs of this program; programs that share outputs run one after the other."""
    num_line_tiles = (num_lines + LINES - 1) // LINES
    tile = tl.program_id(0)
    line_N = tile % num_line_tiles * LINES + tl.arange(0, LINES)
    return line_N, tile // num_line_tiles * OUTPUTS + tl.arange(0, OUTPUTS)


@triton.jit(do_not_specialize=VARYING)
def multiply(
    x_NI,
    weight_OI,
    bias_O,
    added_NO,
    out_NO,
    num_lines,
    num_outputs,
    num_inputs,
    line_stride,
    part_size,
    LINES: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    HAS_PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    WIDENED: tl.constexpr,
):
    """Compute x W^T + bias + added for a tile of lines and outputs, rounded once."""
    line_N, output_O = _tile(num_lines, LINES, OUTPUTS)
    if HAS_PARTS:
        total_ON = tl.zeros([OUTPUTS, LINES], tl.float32)
        for first_input in range(0, num_inputs, part_size):
            total_ON += _part(
                x_NI, weight_OI, line_N, output_O, num_lines, num_outputs, num_inputs, line_stride, first_input,
                part_size, LINES, OUTPUTS, INPUTS, WIDENED,
            )  # fmt: skip
    else:
        total_ON = _part(
            x_NI, weight_OI, line_N, output_O, num_lines, num_outputs, num_inputs, line_stride, 0, part_size,
            LINES, OUTPUTS, INPUTS, WIDENED,
        )  # fmt: skip
    total_NO = tl.trans(total_ON)
    inside_NO = (line_N < num_lines)[:, None] & (output_O < num_outputs)[None]
    at_NO = line_N.to(tl.int64)[:, None] * num_outputs + output_O[None]
    if HAS_BIAS:
        total_NO += tl.load(bias_O + output_O, mask=output_O < num_outputs, other=0.0).to(tl.float32)[None]
    if HAS_ADDED:
        total_NO += tl.load(added_NO + at_NO, mask=inside_NO, other=0.0).to(tl.float32)
    tl.store(out_NO + at_NO, total_NO.to(out_NO.dtype.element_ty), mask=inside_NO)


@triton.jit(do_not_specialize=VARYING)
def multiply_part(
    x_NI,
    weight_OI,
    parts_CNO,
    num_lines,
    num_outputs,
    num_inputs,
    line_stride,
    part_size,
    LINES: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    WIDENED: tl.constexpr,
):
    """Compute one part of the sums, in float32: program (tile, part)."""
    line_N, output_O = _tile(num_lines, LINES, OUTPUTS)
    part = tl.program_id(1)
    sum_ON = _part(
        x_NI, weight_OI, line_N, output_O, num_lines, num_outputs, num_inputs, line_stride, part * part_size, part_size,
        LINES, OUTPUTS, INPUTS, WIDENED,
    )  # fmt: skip
    line = part.to(tl.int64) * num_lines + line_N.to(tl.int64)
    inside_NO = (line_N < num_lines)[:, None] & (output_O < num_outputs)[None]
    tl.store(parts_CNO + line[:, None] * num_outputs + output_O[None], tl.trans(sum_ON), mask=inside_NO)


@triton.jit(do_not_specialize=VARYING)
def add_parts(
    parts_CNO,
    bias_O,
    added_NO,
    out_NO,
    num_lines,
    num_outputs,
    num_parts,
    OUTPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_ADDED: tl.constexpr,
):
    """Add the parts of a line in order, then bias and added, rounded once: program (line, outputs)."""
    line = tl.program_id(0).to(tl.int64)
    output_O = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside_O = output_O < num_outputs
    total_O = tl.zeros([OUTPUTS], tl.float32)
    for part in range(num_parts):
        total_O += tl.load(parts_CNO + (part * num_lines + line) * num_outputs + output_O, mask=inside_O, other=0.0)
    at_O = line * num_outputs + output_O
    if HAS_BIAS:
        total_O += tl.load(bias_O + output_O, mask=inside_O, other=0.0).to(tl.float32)
    if HAS_ADDED:
        total_O += tl.load(added_NO + at_O, mask=inside_O, other=0.0).to(tl.float32)
    tl.store(out_NO + at_O, total_O.to(out_NO.dtype.element_ty), mask=inside_O)


@triton.jit(do_not_specialize=VARYING)
def multiply_gated(
    x_NI,
    gate_OI,
    up_OI,
    gate_bias_O,
    up_bias_O,
    out_NO,
    num_lines,
    num_outputs,
    num_inputs,
    line_stride,
    LINES: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDENED: tl.constexpr,
):
    """Compute silu(x G^T + gate bias) * (x U^T + up bias) for a tile, rounded once; the inputs are one part."""
    line_N, output_O = _tile(num_lines, LINES, OUTPUTS)
    gate_ON = tl.zeros([OUTPUTS, LINES], tl.float32)
    up_ON = tl.zeros([OUTPUTS, LINES], tl.float32)
    input_I = tl.arange(0, INPUTS)
    x_at_NI = x_NI + line_N.to(tl.int64)[:, None] * line_stride + input_I[None]
    weight_OI = output_O.to(tl.int64)[:, None] * num_inputs + input_I[None]
    has_line_N1, has_output_O1 = (line_N < num_lines)[:, None], (output_O < num_outputs)[:, None]
    for first in range(0, num_inputs, INPUTS):
        inside_1I = (first + input_I < num_inputs)[None]
        x = tl.load(x_at_NI + first, mask=has_line_N1 & inside_1I, other=0.0)
        gate = tl.load(gate_OI + weight_OI + first, mask=has_output_O1 & inside_1I, other=0.0)
        up = tl.load(up_OI + weight_OI + first, mask=has_output_O1 & inside_1I, other=0.0)
        if WIDENED:
            x, gate, up = x.to(tl.float32), gate.to(tl.float32), up.to(tl.float32)
        gate_ON = tl.dot(gate, tl.trans(x), gate_ON, input_precision="ieee")
        up_ON = tl.dot(up, tl.trans(x), up_ON, input_precision="ieee")
    if HAS_BIAS:
        has_output_O = output_O < num_outputs
        gate_ON += tl.load(gate_bias_O + output_O, mask=has_output_O, other=0.0).to(tl.float32)[:, None]
        up_ON += tl.load(up_bias_O + output_O, mask=has_output_O, other=0.0).to(tl.float32)[:, None]
    gated_NO = tl.trans(gate_ON / (1.0 + tl.exp(-gate_ON)) * up_ON)
    inside_NO = (line_N < num_lines)[:, None] & (output_O < num_outputs)[None]
    at_NO = line_N.to(tl.int64)[:, None] * num_outputs + output_O[None]
    tl.store(out_NO + at_NO, gated_NO.to(out_NO.dtype.element_ty), mask=inside_NO)


@triton.jit
def rms_norm(x_NE, weight_E, out_NE, size, epsilon, PADDED_SIZE: tl.constexpr):
    """Compute x / rms(x) * weight of one line, rounded once."""
    line = tl.program_id(0).to(tl.int64) * size
    index_E = tl.arange(0, PADDED_SIZE)
    inside_E = index_E < size
    x_E = tl.load(x_NE + line + index_E, mask=inside_E, other=0.0).to(tl.float32)
    weight = tl.load(weight_E + index_E, mask=inside_E, other=0.0).to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(x_E * x_E, 0) / size + epsilon)
    tl.store(out_NE + line + index_E, (x_E * factor * weight).to(out_NE.dtype.element_ty), mask=inside_E)
