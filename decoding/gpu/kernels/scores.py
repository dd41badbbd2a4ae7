"""The score of any token at one position: its logit after bias, penalties and min_tokens, over the temperature.

Every kernel of a pick computes scores here, by the same operations in the same order as torch's
(`decoding/sampling/distribution.py`), so a score is the same float32 number wherever it is computed.
"""

import triton
import triton.language as tl

from decoding.gpu.pick_table import Column

KEY = tl.constexpr(int(Column.KEY))
SAMPLES = tl.constexpr(int(Column.SAMPLES))
MIN_LENGTH = tl.constexpr(int(Column.MIN_LENGTH))
TOP_K = tl.constexpr(int(Column.TOP_K))
USES_COUNTS = tl.constexpr(int(Column.USES_COUNTS))
BIAS_ROW = tl.constexpr(int(Column.BIAS_ROW))
TEMPERATURE = tl.constexpr(int(Column.TEMPERATURE))
TOP_P = tl.constexpr(int(Column.TOP_P))
LOG_MIN_P = tl.constexpr(int(Column.LOG_MIN_P))
REPETITION = tl.constexpr(int(Column.REPETITION))
PRESENCE = tl.constexpr(int(Column.PRESENCE))
FREQUENCY = tl.constexpr(int(Column.FREQUENCY))
NUM_COLUMNS = tl.constexpr(len(Column))
NEVER = tl.constexpr(float("-inf"))


@triton.jit
def number(columns_at, column):
    """Return a column that holds a float64."""
    return tl.load(columns_at + column).to(tl.float64, bitcast=True)


@triton.jit
def at(place, inputs):
    """Return where a position's logits and its row's parameters are, what changes the logits, and its number.

    What changes the logits before the temperature does is for `shaped`.
    """
    logits, row_stride, position_stride, columns, biases, counts, count_rows, drafted, drafted_stride = inputs[:9]
    num_drafted, lengths, vocab_size, num_positions, first, num_stop_ids = inputs[9:]
    row, step = place // num_positions, place % num_positions
    logits_at = logits + row.to(tl.int64) * row_stride + step.to(tl.int64) * position_stride
    columns_at = columns + row * (num_stop_ids + NUM_COLUMNS)
    position = tl.load(lengths + row) + first + step
    has_bias = tl.load(columns_at + BIAS_ROW) >= 0
    biases_at = biases + tl.maximum(tl.load(columns_at + BIAS_ROW), 0) * vocab_size
    has_penalties = tl.load(columns_at + USES_COUNTS) != 0
    counts_at = counts
    if has_penalties:
        counts_at += tl.load(count_rows + row) * vocab_size
    num_before, drafted_at = tl.minimum(first + step, num_drafted), drafted + row.to(tl.int64) * drafted_stride
    repetition, presence = number(columns_at, REPETITION).to(tl.float32), number(columns_at, PRESENCE).to(tl.float32)
    frequency = number(columns_at, FREQUENCY).to(tl.float32)
    num_forbidden = tl.where(position < tl.load(columns_at + MIN_LENGTH), num_stop_ids, 0)
    changes = (
        has_bias, biases_at, has_penalties, counts_at, drafted_at, num_before,
        repetition, presence, frequency, columns_at + NUM_COLUMNS, num_forbidden,
    )  # fmt: skip
    return logits_at, columns_at, changes, position


@triton.jit
def shaped(logits_at, ids, vocab_size, changes):
    """Return the logits of token ids after bias, penalties and min_tokens, float32; -inf outside the vocabulary."""
    has_bias, biases_at, has_penalties, counts_at, drafted_at, num_before = changes[:6]
    repetition, presence, frequency, stop_ids_at, num_forbidden = changes[6:]
    is_token = ids < vocab_size
    logits = tl.load(logits_at + ids, mask=is_token, other=NEVER).to(tl.float32)
    if has_bias:
        logits += tl.load(biases_at + ids, mask=is_token, other=0.0)
    if has_penalties:
        # Twice the number of times that the row's output has the token, and 1 if its prompt has it.
        packed = tl.load(counts_at + ids, mask=is_token, other=0)
        count = packed >> 1
        for index in range(num_before):
            count += (ids == tl.load(drafted_at + index)).to(tl.int32)
        seen = tl.where(logits < 0, logits * repetition, tl.div_rn(logits, repetition))
        seen = seen - frequency * count.to(tl.float32)
        seen = seen - presence * (count > 0).to(tl.float32)
        logits = tl.where((packed > 0) | (count > 0), seen, logits)
    for index in range(num_forbidden):
        logits = tl.where(ids == tl.load(stop_ids_at + index), NEVER, logits)
    return logits


@triton.jit
def ordered(x):
    """Turn float32 numbers into int32 numbers of the same order; equal floats become equal."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)  # -0.0 is 0.0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def unordered(key):
    """Undo `ordered`."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def fixed(x):
    """Turn float32 weights into int64 numbers of 2^-40, whose sum is the same in any order."""
    return (x * 1099511627776.0).to(tl.int64)
