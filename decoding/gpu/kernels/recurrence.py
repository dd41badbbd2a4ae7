"""The recurrence of packed rows, token after token; `decoding/cpu/kernels/recurrence.h` explains the formula.

A program holds some columns of one head's state in its registers, from the first token of a row to its last one.
"""

import triton
import triton.language as tl


@triton.jit
def recur(
    query, key, value, decay, beta, states, row_first, read, written, out,
    num_heads, num_key_heads, key_size, value_size,
    KEYS: tl.constexpr, VALUES: tl.constexpr, HAS_DECAY_OF_KEYS: tl.constexpr, IS_DELTA: tl.constexpr,
):  # fmt: skip
    """Advance one head of one row; KEYS and VALUES are its size and the columns of this program, in powers of 2."""
    row, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    keys, values = tl.arange(0, KEYS), block * VALUES + tl.arange(0, VALUES)
    is_key, is_value = keys < key_size, values < value_size
    is_here = is_key[:, None] & is_value[None, :]
    places = keys[:, None] * value_size + values[None, :]
    state_size = (key_size * value_size).to(tl.int64)
    entry = tl.load(read + row)
    before = states + (entry * num_heads + head) * state_size + places
    state = tl.load(before, mask=is_here & (entry >= 0), other=0.0)
    key_head = head // (num_heads // num_key_heads)
    for token in range(tl.load(row_first + row), tl.load(row_first + row + 1)):
        line, key_line = token * num_heads + head, token * num_key_heads + key_head
        q = tl.load(query + key_line * key_size + keys, mask=is_key, other=0.0)
        k = tl.load(key + key_line * key_size + keys, mask=is_key, other=0.0)
        change = tl.load(value + line * value_size + values, mask=is_value, other=0.0)
        if HAS_DECAY_OF_KEYS:
            state = state * tl.load(decay + line * key_size + keys, mask=is_key, other=0.0)[:, None]
        else:
            state = state * tl.load(decay + line)
        if IS_DELTA:
            change = (change - tl.sum(state * k[:, None], 0)) * tl.load(beta + line)
        state = state + k[:, None] * change[None, :]
        tl.store(out + line * value_size + values, tl.sum(state * q[:, None], 0), mask=is_value)
        entry = tl.load(written + token)
        behind = states + (entry * num_heads + head) * state_size + places
        tl.store(behind, state, mask=is_here & (entry >= 0))
