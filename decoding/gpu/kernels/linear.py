"""Products of lines with a weight, and norms of lines, in which a line's numbers do not depend on the other lines.

The inputs are divided into parts of a size that the weight alone decides. The sum over a part runs in steps of the same
number of inputs, and the sums of the parts are added in order. So it makes no difference, bit for bit, whether one
program computes all parts, as pays for many lines, or each part has a program (`add_parts` comes behind), as pays for
few, which would keep too few programs busy to read the weight at the speed of the memory. The outputs are the rows of
the tensor cores' product and the lines are its columns, so that few lines waste nothing and many run the same
instructions.

Shapes: N lines, I inputs, O outputs, C parts, E numbers of a line. Sizes in capitals are known to the compiler.
"""

import triton
import triton.language as tl

# It changes from round to round: compiling anew for a 1, or for a multiple of 16, would take a second in a round.
VARYING = ["num_lines"]


@triton.jit
def _part(
    x_at_NI,
    weight_at_OI,
    gate_at_OI,
    has_line_N1,
    has_output_O1,
    first_input,
    end_input,
    num_inputs,
    INPUTS: tl.constexpr,
    IS_GATED: tl.constexpr,
    WIDENED: tl.constexpr,
):
    """Return the sums [OUTPUTS, LINES] over the inputs of one part, and with IS_GATED those of the gate."""
    sum_ON = tl.zeros([weight_at_OI.shape[0], x_at_NI.shape[0]], tl.float32)
    gate_ON = sum_ON
    for first in range(first_input, tl.minimum(end_input, num_inputs), INPUTS):
        inside_1I = (first + tl.arange(0, INPUTS) < num_inputs)[None]
        x = tl.load(x_at_NI + first, mask=has_line_N1 & inside_1I, other=0.0)
        weight = tl.load(weight_at_OI + first, mask=has_output_O1 & inside_1I, other=0.0)
        if WIDENED:
            x, weight = x.to(tl.float32), weight.to(tl.float32)
        sum_ON = tl.dot(weight, tl.trans(x), sum_ON, input_precision="ieee")
        if IS_GATED:
            gate = tl.load(gate_at_OI + first, mask=has_output_O1 & inside_1I, other=0.0)
            if WIDENED:
                gate = gate.to(tl.float32)
            gate_ON = tl.dot(gate, tl.trans(x), gate_ON, input_precision="ieee")
    return sum_ON, gate_ON


@triton.jit(do_not_specialize=VARYING)
def multiply(
    x_NI,
    weight_OI,
    gate_OI,
    bias_O,
    gate_bias_O,
    added_NO,
    out_NO,  # of one part a program [C, N, O], in float32
    num_lines,
    num_outputs,
    num_inputs,
    line_stride,
    part_size,
    LINES: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    HAS_PARTS: tl.constexpr,
    IS_GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    WIDENED: tl.constexpr,
):
    """Compute x W^T + bias + added for a tile of lines and outputs, rounded once: program (tile, part).

    There is one program for each part, which leaves its sums to `add_parts`, or with HAS_PARTS one for all. With
    IS_GATED it is silu(x G^T + gate bias) * (x W^T + bias), whose inputs are one part. Programs that share outputs run
    one after the other.
    """
    num_line_tiles = (num_lines + LINES - 1) // LINES
    line_N = tl.program_id(0) % num_line_tiles * LINES + tl.arange(0, LINES)
    output_O = tl.program_id(0) // num_line_tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    input_I, part = tl.arange(0, INPUTS), tl.program_id(1)
    has_line_N1, has_output_O = (line_N < num_lines)[:, None], output_O < num_outputs
    x_at_NI = x_NI + line_N.to(tl.int64)[:, None] * line_stride + input_I[None]
    weight_at_OI = output_O.to(tl.int64)[:, None] * num_inputs + input_I[None]
    gate_at_OI, weight_at_OI = gate_OI + weight_at_OI, weight_OI + weight_at_OI
    if HAS_PARTS:
        total_ON = tl.zeros([OUTPUTS, LINES], tl.float32)
        for first_input in range(0, num_inputs, part_size):
            part_ON, _ = _part(
                x_at_NI, weight_at_OI, gate_at_OI, has_line_N1, has_output_O[:, None], first_input,
                first_input + part_size, num_inputs, INPUTS, False, WIDENED,
            )  # fmt: skip
            total_ON += part_ON
    else:
        total_ON, gate_ON = _part(
            x_at_NI, weight_at_OI, gate_at_OI, has_line_N1, has_output_O[:, None], part * part_size,
            (part + 1) * part_size, num_inputs, INPUTS, IS_GATED, WIDENED,
        )  # fmt: skip
    if HAS_BIAS:
        total_ON += tl.load(bias_O + output_O, mask=has_output_O, other=0.0).to(tl.float32)[:, None]
    if IS_GATED:
        if HAS_BIAS:
            gate_ON += tl.load(gate_bias_O + output_O, mask=has_output_O, other=0.0).to(tl.float32)[:, None]
        total_ON = gate_ON / (1.0 + tl.exp(-gate_ON)) * total_ON
    total_NO, inside_NO = tl.trans(total_ON), has_line_N1 & has_output_O[None]
    at_NO = (part.to(tl.int64) * num_lines + line_N.to(tl.int64))[:, None] * num_outputs + output_O[None]
    if HAS_ADDED:
        total_NO += tl.load(added_NO + at_NO, mask=inside_NO, other=0.0).to(tl.float32)
    tl.store(out_NO + at_NO, total_NO.to(out_NO.dtype.element_ty), mask=inside_NO)


@triton.jit
def sum_of_parts(parts, at, part_stride, num_parts, inside):
    """Add the parts of some numbers in order; the parts of a number are a stride apart."""
    total = tl.zeros(at.shape, tl.float32)
    for part in range(num_parts):
        total += tl.load(parts + part * part_stride + at, mask=inside, other=0.0).to(tl.float32)
    return total


@triton.jit
def _normed(x_E, weight_E, index_E, inside_E, size, epsilon):
    """Compute x / rms(x) * weight of one line in float32, and 0 beyond its end."""
    weight = tl.load(weight_E + index_E, mask=inside_E, other=0.0).to(tl.float32)
    return x_E * (1.0 / tl.sqrt(tl.sum(x_E * x_E, 0) / size + epsilon)) * weight


# One program serves any number of parts: another one could add the squares of a line in another order.
@triton.jit(do_not_specialize=[*VARYING, "num_parts"])
def add_parts(
    parts_CNE,
    bias_E,
    added_NE,
    norm_E,
    out_NE,
    normed_NE,
    num_lines,
    size,
    num_parts,
    epsilon,
    PADDED_SIZE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Add the parts of a line in order, then bias and added, rounded once; with HAS_NORM also `rms_norm` of it."""
    line = tl.program_id(0).to(tl.int64) * size
    index_E = tl.arange(0, PADDED_SIZE)
    inside_E = index_E < size
    total_E = sum_of_parts(parts_CNE, line + index_E, num_lines.to(tl.int64) * size, num_parts, inside_E)
    if HAS_BIAS:
        total_E += tl.load(bias_E + index_E, mask=inside_E, other=0.0).to(tl.float32)
    if HAS_ADDED:
        total_E += tl.load(added_NE + line + index_E, mask=inside_E, other=0.0).to(tl.float32)
    rounded_E = total_E.to(out_NE.dtype.element_ty)
    tl.store(out_NE + line + index_E, rounded_E, mask=inside_E)
    if HAS_NORM:
        normed_E = _normed(rounded_E.to(tl.float32), norm_E, index_E, inside_E, size, epsilon)
        tl.store(normed_NE + line + index_E, normed_E.to(normed_NE.dtype.element_ty), mask=inside_E)


@triton.jit
def rms_norm(x_NE, weight_E, out_NE, size, epsilon, PADDED_SIZE: tl.constexpr):
    """Compute x / rms(x) * weight of one line, rounded once."""
    line = tl.program_id(0).to(tl.int64) * size
    index_E = tl.arange(0, PADDED_SIZE)
    inside_E = index_E < size
    x_E = tl.load(x_NE + line + index_E, mask=inside_E, other=0.0).to(tl.float32)
    normed_E = _normed(x_E, weight_E, index_E, inside_E, size, epsilon)
    tl.store(out_NE + line + index_E, normed_E.to(out_NE.dtype.element_ty), mask=inside_E)
