"""Attention of ragged rows over keys and values that stay in their slots.

A row's keys are divided into chunks at fixed positions. A chunk's part of the attention (a sum of values, the largest
score, a sum of weights) is computed by itself, and parts are merged one after the other, the first chunk first. So the
numbers of a token depend on its own keys alone: not on the other tokens of its row, not on other rows, and not on
whether one program runs all chunks of a row or each chunk has a program (`attend` with IS_PART, and `merge`).
A key that a query does not see changes nothing, bit for bit: its weight is zero, and a factor of one is exact.

Query heads that share a KV head lie beside the tokens: a line is a query head of a token.

Keys and values lie in slots, or in pages of whole chunks, which a table finds: with the same numbers in the same order.

Shapes: N tokens, B rows, Q query heads, H KV heads, G = Q / H, D head size, S slots, P positions, C chunks or pages.
Sizes in capitals, and what a query sees, are known to the compiler.
"""

import triton
import triton.language as tl

from decoding.gpu.kernels.places import place_of

# They change from round to round: compiling anew for a 1, or for a multiple of 16, would take a second in a round.
VARYING = ["num_keys", "num_chunks", "num_tiles"]
LOG2_E = tl.constexpr(1.4426950408889634)
NEVER = tl.constexpr(float("-inf"))


@triton.jit
def _power(x, largest):
    """Return 2 ** (x - largest), and 0 where both are minus infinity."""
    return tl.exp2(x - tl.where(largest == NEVER, 0.0, largest))


@triton.jit
def _merged(sum_MD, largest_M, weight_M, other_MD, other_largest_M, other_weight_M):
    """Add the part of a later chunk to that of earlier ones."""
    new_M = tl.maximum(largest_M, other_largest_M)
    factor_M, other_factor_M = _power(largest_M, new_M), _power(other_largest_M, new_M)
    sum_MD = sum_MD * factor_M[:, None] + other_MD * other_factor_M[:, None]
    return sum_MD, new_M, weight_M * factor_M + other_weight_M * other_factor_M


@triton.jit
def _first_visible(position, window, segment):
    """Return the first position that a query sees: of a sliding window, of its own segment, or 0."""
    by_window = tl.where(window > 0, tl.maximum(position - window + 1, 0), 0)
    return tl.where(segment > 0, position // tl.maximum(segment, 1) * segment, by_window)


@triton.jit
def _first_step(first_chunk, window, num_always_visible):
    """Return where a loop over chunks begins: one step earlier, for chunk 0, where the window leaves that one out."""
    has_first = (window > 0) & (num_always_visible > 0) & (first_chunk > 0)
    return first_chunk - tl.where(has_first, 1, 0)


@triton.jit
def _span(step, first_key, end_key, num_always_visible, CHUNK: tl.constexpr):
    """Return the chunk of a step, and which of its positions are seen: those of the window, or the always visible."""
    is_before = step * CHUNK + CHUNK <= first_key
    from_key = tl.where(is_before | ((step == 0) & (num_always_visible > 0)), 0, first_key)
    to_key = tl.where(is_before, num_always_visible, end_key)
    return tl.where(is_before, 0, step), from_key, tl.minimum(to_key, end_key)


@triton.jit
def _finished(sum_MD, largest_M, weight_M, head_M, exists_M, sinks_Q, HAS_SINKS: tl.constexpr):
    """Return the attention of lines from all of their parts, and from the sinks of their query heads."""
    if HAS_SINKS:
        sink_M = tl.load(sinks_Q + head_M, mask=exists_M, other=0.0).to(tl.float32) * LOG2_E
        one_M = tl.full([head_M.shape[0]], 1.0, tl.float32)
        sum_MD, largest_M, weight_M = _merged(sum_MD, largest_M, weight_M, tl.zeros_like(sum_MD), sink_M, one_M)
    return sum_MD / tl.where(exists_M, weight_M, 1.0)[:, None]


@triton.jit(do_not_specialize=VARYING)
def attend(
    query_NQD,
    out,  # [N, Q, D]; with IS_PART [N, Q, C, D] of sums, in float32
    marks_NQC2,  # with IS_PART: the largest score and the sum of weights
    keys_SPHD,
    values_SPHD,
    row_first,
    slots_N,
    positions_N,
    mask_BTL,
    sinks_Q,
    pages_SC,
    num_keys,
    num_heads,
    num_chunks,
    slot_stride,
    position_stride,
    head_stride,
    table_stride,
    mask_row_stride,
    mask_token_stride,
    num_tiles,
    window: tl.constexpr,
    num_always_visible: tl.constexpr,
    segment: tl.constexpr,
    scale,
    softcap,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    LINES: tl.constexpr,
    CHUNK: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    IS_PART: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    WIDENED: tl.constexpr,
):
    """Compute a tile of queries against all chunks of its row: program (row and tile, KV head).

    With IS_PART there is a program for each chunk, which leaves that chunk's part to `merge`.
    """
    row, tile, head = tl.program_id(0) // num_tiles, tl.program_id(0) % num_tiles, tl.program_id(1)
    first, end = tl.load(row_first + row).to(tl.int32), tl.load(row_first + row + 1).to(tl.int32)
    line_M = tile * LINES + tl.arange(0, LINES)
    token_M = first + line_M // GROUP
    exists_M = token_M < end
    if first + tile * LINES // GROUP >= end:
        return
    position_M = tl.load(positions_N + token_M, mask=exists_M, other=-1).to(tl.int32)
    first_visible_M = _first_visible(position_M, window, segment)
    # The positions that any line of the tile sees: the first one, and the one behind the last.
    first_key = tl.min(tl.where(exists_M, first_visible_M, num_keys), 0)
    end_key = tl.minimum(tl.max(position_M, 0) + 1, num_keys)
    if HAS_MASK:  # the rule is in the mask
        first_key = first_key * 0
    if IS_PART:
        first_step = tl.program_id(2)
        end_step = first_step + 1
        is_inside = (end_step * CHUNK > first_key) & (first_step * CHUNK < end_key)
        if not (is_inside | ((first_step == 0) & (window > 0) & (num_always_visible > 0))):
            return
    else:
        first_step = _first_step(first_key // CHUNK, window, num_always_visible)
        end_step = (end_key + CHUNK - 1) // CHUNK
    query_head_M = head * GROUP + line_M % GROUP
    line_at_M = token_M.to(tl.int64) * num_heads * GROUP + query_head_M
    size_D = tl.arange(0, PADDED_SIZE)
    inside_MD = exists_M[:, None] & (size_D[None] < HEAD_SIZE)
    query_MD = tl.load(query_NQD + line_at_M[:, None] * HEAD_SIZE + size_D[None], mask=inside_MD, other=0.0)
    if WIDENED:
        query_MD = query_MD.to(tl.float32)
    slot = tl.load(slots_N + first).to(tl.int64)
    mask_ML = mask_BTL + row.to(tl.int64) * mask_row_stride + (line_M // GROUP) * mask_token_stride
    always_visible = tl.where(window > 0, num_always_visible, 0)
    sum_MD = tl.zeros([LINES, PADDED_SIZE], tl.float32)
    largest_M = tl.full([LINES], NEVER, tl.float32)
    weight_M = tl.zeros([LINES], tl.float32)
    for step in range(first_step, end_step):
        chunk, from_key, to_key = _span(step, first_key, end_key, num_always_visible, CHUNK)
        part_MD = tl.zeros([LINES, PADDED_SIZE], tl.float32)
        part_largest_M = tl.full([LINES], NEVER, tl.float32)
        part_weight_M = tl.zeros([LINES], tl.float32)
        place = place_of(pages_SC, slot, chunk * CHUNK, slot_stride, position_stride, table_stride, PAGE)
        place += head * head_stride
        from_key = tl.maximum(chunk * CHUNK, from_key // KEYS * KEYS)  # of those before no line sees any
        for start in range(from_key, tl.minimum(chunk * CHUNK + CHUNK, to_key), KEYS):
            key_N = start + tl.arange(0, KEYS)
            is_written_N = key_N < to_key
            inside_ND = is_written_N[:, None] & (size_D[None] < HEAD_SIZE)
            at_ND = (key_N[:, None] - chunk * CHUNK) * position_stride + size_D[None]  # inside a chunk: 32 bits do
            key_ND = tl.load(keys_SPHD + place + at_ND, mask=inside_ND, other=0.0)
            value_ND = tl.load(values_SPHD + place + at_ND, mask=inside_ND, other=0.0)
            if WIDENED:
                key_ND = key_ND.to(tl.float32)
            score_MN = tl.dot(query_MD, tl.trans(key_ND), input_precision="ieee") * scale
            if HAS_SOFTCAP:  # tanh, written with what every Triton has
                score_MN = softcap * (1.0 - 2.0 / (tl.exp(2.0 * score_MN / softcap) + 1.0))
            if HAS_MASK:
                is_asked_MN = exists_M[:, None] & is_written_N[None]
                sees_MN = tl.load(mask_ML[:, None] + key_N[None], mask=is_asked_MN, other=0) != 0
            else:
                is_near_MN = (key_N[None] >= first_visible_M[:, None]) | (key_N < always_visible)[None]
                sees_MN = (key_N[None] <= position_M[:, None]) & is_near_MN
            score_MN = tl.where(sees_MN, score_MN * LOG2_E, NEVER)
            new_M = tl.maximum(part_largest_M, tl.max(score_MN, 1))
            weight_MN = _power(score_MN, new_M[:, None])
            factor_M = _power(part_largest_M, new_M)
            part_weight_M = part_weight_M * factor_M + tl.sum(weight_MN, 1)
            weight_MN = weight_MN.to(value_ND.dtype)
            if WIDENED:
                weight_MN, value_ND = weight_MN.to(tl.float32), value_ND.to(tl.float32)
            part_MD = part_MD * factor_M[:, None] + tl.dot(weight_MN, value_ND, input_precision="ieee")
            part_largest_M = new_M
        sum_MD, largest_M, weight_M = _merged(sum_MD, largest_M, weight_M, part_MD, part_largest_M, part_weight_M)
    if IS_PART:
        line_at_M = line_at_M * num_chunks + tl.program_id(2)
        tl.store(marks_NQC2 + line_at_M * 2, largest_M, mask=exists_M)
        tl.store(marks_NQC2 + line_at_M * 2 + 1, weight_M, mask=exists_M)
    else:
        sum_MD = _finished(sum_MD, largest_M, weight_M, query_head_M, exists_M, sinks_Q, HAS_SINKS)
    tl.store(out + line_at_M[:, None] * HEAD_SIZE + size_D[None], sum_MD.to(out.dtype.element_ty), mask=inside_MD)


@triton.jit(do_not_specialize=VARYING)
def merge(
    parts_NQCD,
    marks_NQC2,
    out_NQD,
    positions_N,
    sinks_Q,
    num_keys,
    num_query_heads,
    num_chunks,
    window: tl.constexpr,
    num_always_visible: tl.constexpr,
    segment: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    LINES: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Merge the parts of a token's chunks for some query heads: program (token, query heads)."""
    token = tl.program_id(0).to(tl.int64)
    head_M = tl.program_id(1) * LINES + tl.arange(0, LINES)
    exists_M = head_M < num_query_heads
    size_D = tl.arange(0, PADDED_SIZE)
    inside_MD = exists_M[:, None] & (size_D[None] < HEAD_SIZE)
    position = tl.load(positions_N + token).to(tl.int32)
    first_key = _first_visible(position, window, segment)
    if HAS_MASK:
        first_key = first_key * 0
    end_key = tl.minimum(position + 1, num_keys)
    sum_MD = tl.zeros([LINES, PADDED_SIZE], tl.float32)
    largest_M = tl.full([LINES], NEVER, tl.float32)
    weight_M = tl.zeros([LINES], tl.float32)
    line_M = token * num_query_heads + head_M
    first_step = _first_step(first_key // CHUNK, window, num_always_visible)
    for step in range(first_step, (end_key + CHUNK - 1) // CHUNK):
        chunk, _, _ = _span(step, first_key, end_key, num_always_visible, CHUNK)
        part_M = line_M * num_chunks + chunk
        part_MD = tl.load(parts_NQCD + part_M[:, None] * HEAD_SIZE + size_D[None], mask=inside_MD, other=0.0)
        part_largest_M = tl.load(marks_NQC2 + part_M * 2, mask=exists_M, other=NEVER)
        part_weight_M = tl.load(marks_NQC2 + part_M * 2 + 1, mask=exists_M, other=0.0)
        sum_MD, largest_M, weight_M = _merged(sum_MD, largest_M, weight_M, part_MD, part_largest_M, part_weight_M)
    found_MD = _finished(sum_MD, largest_M, weight_M, head_M, exists_M, sinks_Q, HAS_SINKS)
    found_MD = found_MD.to(out_NQD.dtype.element_ty)
    tl.store(out_NQD + line_M[:, None] * HEAD_SIZE + size_D[None], found_MD, mask=inside_MD)
