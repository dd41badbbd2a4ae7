"""From a layer's product to its attention's inputs: query and key norms, rotary embedding, and the slots' new entries.

Shapes: N tokens, Q query heads, H KV heads, D head size, X = (Q + 2 H) D, S slots, P positions, C pages of a row.
"""

import triton
import triton.language as tl

from decoding.gpu.kernels.linear import sum_of_parts
from decoding.gpu.kernels.places import place_of


@triton.jit
def _read(line_X, bias_X, like, at_HD, part, num_parts, inside_HD, HAS_PARTS: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Return some numbers of a line: those of the product, or the sums of its parts in order and the bias, rounded."""
    if HAS_PARTS:
        total_HD = sum_of_parts(line_X, at_HD, part, num_parts, inside_HD)
        if HAS_BIAS:
            total_HD += tl.load(bias_X + at_HD, mask=inside_HD, other=0.0).to(tl.float32)
        x_HD = total_HD.to(like.dtype.element_ty)
    else:
        x_HD = tl.load(line_X + at_HD, mask=inside_HD, other=0.0)
    return x_HD


# One program serves any number of parts: another one could add the squares of a head in another order.
@triton.jit(do_not_specialize=["num_lines", "num_parts"])
def split_heads(
    qkv_NX,  # with HAS_PARTS its parts [C, N, X], in float32
    bias_X,
    query_NQD,
    keys_SPHD,
    values_SPHD,
    cos_PD,
    sin_PD,  # with the sign of the rotation: out = x * cos + swapped(x) * sin
    query_norm_D,
    key_norm_D,
    slots_N,
    positions_N,
    written_N,
    pages_SC,
    num_lines,
    num_parts,
    num_query_heads,
    num_kv_heads,
    num_turns,  # lines of the rotary tables
    slot_stride,
    position_stride,
    head_stride,
    table_stride,
    epsilon,
    HEAD_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    HAS_PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Turn queries and keys, after their norms, and store a token's keys and values: program (token, some heads)."""
    token = tl.program_id(0).to(tl.int64)
    head_H = tl.program_id(1) * HEADS + tl.arange(0, HEADS)  # queries, then keys, then values
    num_heads = num_query_heads + 2 * num_kv_heads
    size_D = tl.arange(0, PADDED_SIZE)
    swapped_D = (size_D + HEAD_SIZE // 2) % HEAD_SIZE
    is_query_H, is_value_H = head_H < num_query_heads, head_H >= num_query_heads + num_kv_heads
    inside_D = size_D < HEAD_SIZE
    inside_HD = (head_H < num_heads)[:, None] & inside_D[None]
    head_H1, line_X = head_H[:, None] * HEAD_SIZE, qkv_NX + token * num_heads * HEAD_SIZE
    part = num_lines.to(tl.int64) * num_heads * HEAD_SIZE
    at_HD, other_at_HD = head_H1 + size_D[None], head_H1 + swapped_D[None]
    x_HD = _read(line_X, bias_X, query_NQD, at_HD, part, num_parts, inside_HD, HAS_PARTS, HAS_BIAS)
    other_HD = _read(line_X, bias_X, query_NQD, other_at_HD, part, num_parts, inside_HD, HAS_PARTS, HAS_BIAS)
    turned_HD, other_HD = x_HD.to(tl.float32), other_HD.to(tl.float32)
    if HAS_NORMS:
        square_H = tl.sum(turned_HD * turned_HD, 1)
        factor_H1 = (1.0 / tl.sqrt(square_H / HEAD_SIZE + epsilon))[:, None]
        is_query_H1 = is_query_H[:, None]
        query_D, query_other_D = (tl.load(query_norm_D + size_D, mask=inside_D, other=0.0),
                                  tl.load(query_norm_D + swapped_D, mask=inside_D, other=0.0))  # fmt: skip
        key_D, key_other_D = (tl.load(key_norm_D + size_D, mask=inside_D, other=0.0),
                              tl.load(key_norm_D + swapped_D, mask=inside_D, other=0.0))  # fmt: skip
        turned_HD = turned_HD * factor_H1 * tl.where(is_query_H1, query_D[None], key_D[None]).to(tl.float32)
        other_HD = other_HD * factor_H1 * tl.where(is_query_H1, query_other_D[None], key_other_D[None]).to(tl.float32)
    position = tl.load(positions_N + token)
    turn = tl.minimum(position, num_turns - 1) * HEAD_SIZE  # padding may be beyond the end
    cos_D = tl.load(cos_PD + turn + size_D, mask=inside_D, other=0.0).to(tl.float32)
    sin_D = tl.load(sin_PD + turn + size_D, mask=inside_D, other=0.0).to(tl.float32)
    turned_HD = (turned_HD * cos_D[None] + other_HD * sin_D[None]).to(x_HD.dtype)

    query_H = query_NQD + (token * num_query_heads + head_H) * HEAD_SIZE
    tl.store(query_H[:, None] + size_D[None], turned_HD, mask=inside_HD & is_query_H[:, None])
    slot, written = tl.load(slots_N + token).to(tl.int64), tl.load(written_N + token).to(tl.int64)
    place = place_of(pages_SC, slot, written, slot_stride, position_stride, table_stride, PAGE)
    key_H = keys_SPHD + place + (head_H - num_query_heads) * head_stride
    is_key_H = (head_H >= num_query_heads) & (head_H < num_query_heads + num_kv_heads)
    tl.store(key_H[:, None] + size_D[None], turned_HD, mask=inside_HD & is_key_H[:, None])
    value_H = values_SPHD + place + (head_H - num_query_heads - num_kv_heads) * head_stride
    tl.store(value_H[:, None] + size_D[None], x_HD, mask=inside_HD & is_value_H[:, None])
