"""Kernels that pick a token at each position: the largest score plus noise among the tokens that the cuts leave.

`summarize` reads all logits once, and keeps the largest of each block of 64 tokens. `pick` reads only blocks that could
matter, since a block's largest score and its largest noise bound what is in it:

1. top-k: the k-th largest score is sought by bisection in the blocks whose largest score is among the k largest.
2. The race: one token of each block is known cheaply, so the second best of them bounds the two winners from below, and
   only blocks that could reach it are read.
3. top-p: the winners of a race among too many tokens are the winners among those that are kept, if they are kept. That
   is seen from the mass of the tokens that rank before them. If one is not, the tokens before it race again.

Everything is a function of the position's own numbers. Sums are sums of integers, or of 32 x 64 lanes each of which
adds in the order of the blocks, and all else is a comparison, so no order of threads can change a bit.

Estimate for an H100 and 151,936 tokens in bfloat16: `summarize` is bound by memory (0.3 MB a position: 12 us for 128
positions, 60 us for 640), and a program of `pick` takes 10 to 20 us, of which 132 run at a time: 15 us and 75 us.

Shapes: N blocks, Q or (with all their tokens) G of them at once, M = 64 tokens of a block, C chunks of blocks.
"""

import triton
import triton.language as tl

from decoding.gpu.kernels import noise, scores
from decoding.gpu.kernels.noise import BLOCK
from decoding.gpu.kernels.scores import NEVER, fixed, number, ordered, shaped, unordered

NO_KEY = tl.constexpr(-(2**63))  # below every key of a noised score
LARGEST_ID = tl.constexpr(2**31 - 1)
SLACK = tl.constexpr(1e-4)  # bounds hold up to the last bits of a logarithm and of sums


@triton.jit(do_not_specialize=["num_positions", "first", "num_stop_ids", "drafted_stride", "num_drafted"])
def summarize(
    logits,
    row_stride,
    position_stride,
    columns,
    biases,
    counts,
    count_rows,
    drafted,
    drafted_stride,
    num_drafted,
    lengths,
    block_max,
    chunk_max,
    chunk_sum,
    vocab_size,
    num_positions,
    first,
    num_stop_ids,
    CHUNK: tl.constexpr,
):
    """Write the largest shaped logit of each block of a chunk, NaN for a block that holds one, and the chunk's mass."""
    place, chunk = tl.program_id(0), tl.program_id(1)
    logits_at, columns_at, changes, _ = _position(
        place, logits, row_stride, position_stride, columns, biases, counts, count_rows, drafted, drafted_stride,
        num_drafted, lengths, vocab_size, num_positions, first, num_stop_ids,
    )  # fmt: skip
    blocks_G = chunk * CHUNK + tl.arange(0, CHUNK)
    ids_GM = blocks_G[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    logits_GM = shaped(logits_at, ids_GM, vocab_size, changes)
    has_nan_G = tl.max((logits_GM != logits_GM).to(tl.int32), axis=1) > 0
    max_G = tl.max(tl.where(logits_GM == logits_GM, logits_GM, NEVER), axis=1)
    num_blocks = tl.cdiv(vocab_size, BLOCK)
    block_max_at = block_max + place.to(tl.int64) * num_blocks
    tl.store(block_max_at + blocks_G, tl.where(has_nan_G, float("nan"), max_G), mask=blocks_G < num_blocks)
    if _cuts_by_all_mass(columns_at, vocab_size):
        temperature = number(columns_at, scores.TEMPERATURE).to(tl.float32)
        best = tl.max(max_G)
        scores_GM = tl.div_rn(logits_GM, temperature)
        weights_GM = tl.where(scores_GM > NEVER, tl.exp(scores_GM - tl.div_rn(best, temperature)), 0.0)
        chunk_at = place.to(tl.int64) * tl.num_programs(1) + chunk
        tl.store(chunk_max + chunk_at, best)
        tl.store(chunk_sum + chunk_at, tl.sum(fixed(weights_GM)))


@triton.jit(do_not_specialize=["num_positions", "first", "num_stop_ids", "drafted_stride", "num_drafted", "num_chunks"])
def pick(
    logits,
    row_stride,
    position_stride,
    columns,
    biases,
    counts,
    count_rows,
    drafted,
    drafted_stride,
    num_drafted,
    lengths,
    block_max,
    chunk_max,
    chunk_sum,
    blocks_to_read,
    token_ids,
    values,
    is_finite,
    vocab_size,
    num_positions,
    first,
    num_stop_ids,
    num_chunks,
    MAX_BLOCKS: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    PART: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Write each position's token, the best and second noised score, the token's own score, and whether it is one.

    `values` is float32 [3, P]. MAX_BLOCKS and MAX_CHUNKS are powers of two that bound the numbers of blocks and chunks.
    """
    place = tl.program_id(0)
    logits_at, columns_at, changes, position = _position(
        place, logits, row_stride, position_stride, columns, biases, counts, count_rows, drafted, drafted_stride,
        num_drafted, lengths, vocab_size, num_positions, first, num_stop_ids,
    )  # fmt: skip
    num_blocks = tl.cdiv(vocab_size, BLOCK)
    list_at = blocks_to_read + place.to(tl.int64) * num_blocks
    block_max_at = block_max + place.to(tl.int64) * num_blocks
    temperature = number(columns_at, scores.TEMPERATURE).to(tl.float32)
    source = (logits_at, vocab_size, changes, temperature, block_max_at, num_blocks, list_at)
    block_N = tl.arange(0, MAX_BLOCKS)
    max_logit_N = tl.load(block_max_at + block_N, mask=block_N < num_blocks, other=NEVER)
    has_nan = tl.max((max_logit_N != max_logit_N).to(tl.int32), axis=0) > 0
    max_N = tl.div_rn(tl.where(max_logit_N == max_logit_N, max_logit_N, NEVER), temperature)
    top = tl.max(max_N, axis=0)
    is_sound = (not has_nan) & (tl.abs(top) < float("inf"))

    best_key, second_key = tl.full((), NO_KEY, tl.int64), tl.full((), NO_KEY, tl.int64)
    best_score = tl.full((), NEVER, tl.float32)
    if is_sound:
        # Tokens are kept whose score is above `bound`, or equal to it with an id of at least `bound_id`.
        bound, bound_id = tl.full((), NEVER, tl.float32), tl.full((), 0, tl.int32)
        top_p = number(columns_at, scores.TOP_P)
        mass_limit = tl.full((), float("inf"), tl.float64)
        key_N = ordered(max_N)
        top_k = tl.load(columns_at + scores.TOP_K)
        if (top_k > 0) & (top_k < vocab_size):
            least = tl.full((), NEVER, tl.float32)
            if top_k < num_blocks:  # as many blocks have a token that reaches the k-th largest of their largest scores
                least = unordered(_last_key(key_N, (max_N > NEVER).to(tl.int64), top_k.to(tl.float64)))
            bound = _kth_score(source, least, top, top_k, PART, GROUP)
            if top_p < 1:
                num_read = _list_reaching(source, bound, PART)
                mass, _ = _mass_before(source, num_read, top, bound, -1, bound, -1, GROUP)
                mass_limit = top_p * mass.to(tl.float64)
        elif top_p < 1:
            chunk_C = tl.arange(0, MAX_CHUNKS)
            is_chunk_C = chunk_C < num_chunks
            chunk_at = place.to(tl.int64) * num_chunks
            chunk_max_C = tl.div_rn(tl.load(chunk_max + chunk_at + chunk_C, mask=is_chunk_C, other=NEVER), temperature)
            sum_C = tl.load(chunk_sum + chunk_at + chunk_C, mask=is_chunk_C, other=0)
            mass = tl.sum((sum_C.to(tl.float32) * tl.exp(chunk_max_C - top)).to(tl.int64), axis=0)
            mass_limit = top_p * mass.to(tl.float64)
        bound = tl.maximum(bound, tl.minimum(top + number(columns_at, scores.LOG_MIN_P).to(tl.float32), top))
        if mass_limit < float("inf"):
            weights_N = fixed(tl.exp(max_N - top))
            if tl.sum(weights_N, axis=0).to(tl.float64) >= mass_limit:
                # The largest tokens of the blocks are enough, so no token below the last one of these is kept.
                bound = tl.maximum(bound, unordered(_last_key(key_N, weights_N, mass_limit)))

        samples = tl.load(columns_at + scores.SAMPLES) != 0
        hashed = noise.position_hash(tl.load(columns_at + scores.KEY), position)
        is_settled = False
        while not is_settled:
            num_read = _list_racing(source, hashed, samples, bound, bound_id, PART)
            best_key, second_key = _race(source, num_read, hashed, samples, bound, bound_id, GROUP)
            best_score = _score_of(source, best_key)
            is_settled = mass_limit == float("inf")
            if not is_settled:
                low, low_id, high, high_id = best_score, _id_of(best_key), best_score, _id_of(best_key)
                if _value_of(second_key) > NEVER:
                    score, token_id = _score_of(source, second_key), _id_of(second_key)
                    if (score < low) | ((score == low) & (token_id < low_id)):
                        low, low_id = score, token_id
                    else:
                        high, high_id = score, token_id
                num_read = _list_reaching(source, low, PART)
                low_mass, high_mass = _mass_before(source, num_read, top, low, low_id, high, high_id, GROUP)
                is_settled = low_mass.to(tl.float64) < mass_limit
                if not is_settled:
                    is_high_kept = high_mass.to(tl.float64) < mass_limit
                    bound = tl.where(is_high_kept, low, high)
                    bound_id = tl.where(is_high_kept, low_id, high_id) + 1
    num_places = tl.num_programs(0)
    tl.store(token_ids + place, tl.where(is_sound, _id_of(best_key), 0).to(tl.int64))
    tl.store(values + place, _value_of(best_key))
    tl.store(values + num_places + place, _value_of(second_key))
    tl.store(values + 2 * num_places + place, best_score)
    tl.store(is_finite + place, is_sound)


@triton.jit
def _position(
    place,
    logits,
    row_stride,
    position_stride,
    columns,
    biases,
    counts,
    count_rows,
    drafted,
    drafted_stride,
    num_drafted,
    lengths,
    vocab_size,
    num_positions,
    first,
    num_stop_ids,
):
    """Return where a position's logits and its row's parameters are, what changes the logits, and its number."""
    row, step = place // num_positions, place % num_positions
    logits_at = logits + row.to(tl.int64) * row_stride + step.to(tl.int64) * position_stride
    columns_at = columns + row * (num_stop_ids + scores.NUM_COLUMNS)
    position = tl.load(lengths + row) + first + step
    changes = scores.shaping(
        row, tl.minimum(first + step, num_drafted), position, columns_at, num_stop_ids,
        biases, counts, count_rows, drafted, drafted_stride, vocab_size,
    )  # fmt: skip
    return logits_at, columns_at, changes, position


@triton.jit
def _cuts_by_all_mass(columns_at, vocab_size):
    """Tell whether the row has top-p without a top-k that cuts."""
    top_k = tl.load(columns_at + scores.TOP_K)
    return (number(columns_at, scores.TOP_P) < 1) & ((top_k == 0) | (top_k >= vocab_size))


@triton.jit
def _list_reaching(source, bound, PART: tl.constexpr):
    """List the blocks whose largest score reaches the bound; return their number."""
    num_blocks = source[5]
    num_listed = tl.full((), 0, tl.int32)
    tl.debug_barrier()  # every thread has read the last list
    for start in range(0, num_blocks, PART):
        block_Q, max_Q = _largest(source, start, PART)
        num_listed = _append(source, num_listed, block_Q, max_Q >= bound)
    tl.debug_barrier()  # every thread sees this one
    return num_listed


@triton.jit
def _list_racing(source, hashed, samples, bound, bound_id, PART: tl.constexpr):
    """List the blocks that may have one of the two best noised scores among the kept tokens; return their number.

    One noised score of each block is known cheaply: that of the token with the block's largest noise, or without noise
    the largest score. The second best of these is a floor under the two best of all.
    """
    num_blocks = source[5]
    best, second = tl.full((), NEVER, tl.float32), tl.full((), NEVER, tl.float32)
    for start in range(0, num_blocks, PART):
        block_Q, known_Q = _largest(source, start, PART)
        if samples:
            known_Q = _score_of_holders(source, hashed, block_Q, bound, bound_id)
        here = tl.max(known_Q, axis=0)
        first = tl.min(tl.where(known_Q == here, block_Q, LARGEST_ID), axis=0)
        next_here = tl.max(tl.where(block_Q == first, NEVER, known_Q), axis=0)
        second = tl.maximum(tl.minimum(best, here), tl.maximum(second, next_here))
        best = tl.maximum(best, here)
    floor = second - tl.maximum(tl.abs(second), 1.0) * SLACK
    num_listed = tl.full((), 0, tl.int32)
    tl.debug_barrier()  # every thread has read the last list
    for start in range(0, num_blocks, PART):
        block_Q, max_Q = _largest(source, start, PART)
        reach_Q = max_Q
        if samples:
            least_Q, _ = noise.least_of_blocks(hashed, block_Q)
            reach_Q = max_Q - noise.logarithm(least_Q)
        num_listed = _append(source, num_listed, block_Q, (reach_Q >= floor) & (max_Q >= bound) & (max_Q > NEVER))
    tl.debug_barrier()  # every thread sees this one
    return num_listed


@triton.jit
def _score_of_holders(source, hashed, block_Q, bound, bound_id):
    """Return the noised scores of the tokens with the largest noise of their blocks; -inf for those not kept."""
    logits_at, vocab_size, changes, temperature = source[:4]
    least_Q, holder_Q = noise.least_of_blocks(hashed, block_Q)
    score_Q = tl.div_rn(shaped(logits_at, holder_Q, vocab_size, changes), temperature)
    is_kept_Q = _is_kept(score_Q, holder_Q, bound, bound_id)
    return tl.where(is_kept_Q, score_Q - noise.logarithm(least_Q), NEVER)


@triton.jit
def _largest(source, start, PART: tl.constexpr):
    """Return the numbers of some blocks, and their largest scores; -inf behind the last block."""
    temperature, block_max_at, num_blocks = source[3:6]
    block_Q = start + tl.arange(0, PART)
    return block_Q, tl.div_rn(tl.load(block_max_at + block_Q, mask=block_Q < num_blocks, other=NEVER), temperature)


@triton.jit
def _append(source, num_listed, block_Q, is_wanted_Q):
    """Append the wanted blocks to the list, in order; return its length."""
    list_at, num_blocks = source[6], source[5]
    is_wanted_Q = is_wanted_Q & (block_Q < num_blocks)
    place_Q = num_listed + tl.cumsum(is_wanted_Q.to(tl.int32), axis=0)
    tl.store(list_at + place_Q - 1, block_Q, mask=is_wanted_Q)
    return tl.max(place_Q, axis=0)


@triton.jit
def _read(source, start, num_read, GROUP: tl.constexpr):
    """Return some of the listed blocks [G], and the ids and scores [G, M] of their tokens; -inf beyond the list."""
    logits_at, vocab_size, changes, temperature = source[:4]
    list_at = source[6]
    index_G = start + tl.arange(0, GROUP)
    block_G = tl.load(list_at + index_G, mask=index_G < num_read, other=LARGEST_ID // BLOCK)
    ids_GM = block_G[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    return block_G, ids_GM, tl.div_rn(shaped(logits_at, ids_GM, vocab_size, changes), temperature)


@triton.jit
def _is_kept(score, ids, bound, bound_id):
    return (score > bound) | ((score == bound) & (ids >= bound_id))


@triton.jit
def _last_key(key_N, weights_N, limit):
    """Return the largest key for which the weights of all keys that reach it sum to `limit`, which all together do."""
    low, high = tl.min(key_N, axis=0).to(tl.int64), tl.max(key_N, axis=0).to(tl.int64) + 1
    while high - low > 1:  # keys from `low` on reach the limit, from `high` on they do not
        middle = (low + high) >> 1
        if tl.sum(tl.where(key_N >= middle, weights_N, 0), axis=0).to(tl.float64) >= limit:
            low = tl.min(tl.where(key_N >= middle, key_N, LARGEST_ID), axis=0).to(tl.int64)
        else:
            high = tl.max(tl.where(key_N < middle, key_N, -LARGEST_ID), axis=0).to(tl.int64) + 1
    return low.to(tl.int32)


@triton.jit
def _kth_score(source, least, top, top_k, PART: tl.constexpr, GROUP: tl.constexpr):
    """Return the k-th largest score of all tokens, which is at least `least`; equal scores count each."""
    num_read = _list_reaching(source, least, PART)
    low, high = ordered(least).to(tl.int64), ordered(top).to(tl.int64) + 1
    while high - low > 1:  # at least k tokens reach `low`, and fewer reach `high`
        middle = (low + high) >> 1
        num_above = tl.full((), 0, tl.int32)
        above, below = tl.full((), LARGEST_ID, tl.int32), tl.full((), -LARGEST_ID, tl.int32)
        for start in range(0, num_read, GROUP):
            _, _, scores_GM = _read(source, start, num_read, GROUP)
            key_GM = ordered(scores_GM)
            num_above += tl.sum((key_GM >= middle).to(tl.int32))
            above = tl.minimum(above, tl.min(tl.where(key_GM >= middle, key_GM, LARGEST_ID)))
            below = tl.maximum(below, tl.max(tl.where(key_GM < middle, key_GM, -LARGEST_ID)))
        if num_above >= top_k:
            low = above.to(tl.int64)
        else:
            high = tl.maximum(below.to(tl.int64), low) + 1
    return unordered(low.to(tl.int32))


@triton.jit
def _mass_before(source, num_read, top, low, low_id, high, high_id, GROUP: tl.constexpr):
    """Return the masses of the tokens that rank before two tokens; of equal scores the higher id ranks first."""
    low_GM = tl.zeros((GROUP, BLOCK), dtype=tl.float32)
    high_GM = tl.zeros((GROUP, BLOCK), dtype=tl.float32)
    for start in range(0, num_read, GROUP):
        _, ids_GM, scores_GM = _read(source, start, num_read, GROUP)
        weights_GM = tl.exp(scores_GM - top)
        low_GM += tl.where(_is_kept(scores_GM, ids_GM, low, low_id + 1), weights_GM, 0.0)
        high_GM += tl.where(_is_kept(scores_GM, ids_GM, high, high_id + 1), weights_GM, 0.0)
    return tl.sum(fixed(low_GM)), tl.sum(fixed(high_GM))


@triton.jit
def _race(source, num_read, hashed, samples, bound, bound_id, GROUP: tl.constexpr):
    """Return the keys of the two best noised scores among the kept tokens of the listed blocks."""
    best, second = tl.full((), NO_KEY, tl.int64), tl.full((), NO_KEY, tl.int64)
    for start in range(0, num_read, GROUP):
        block_G, ids_GM, noised_GM = _read(source, start, num_read, GROUP)
        is_kept_GM = _is_kept(noised_GM, ids_GM, bound, bound_id)
        if samples:
            least_G, holder_G = noise.least_of_blocks(hashed, block_G)
            noised_GM += noise.gumbel(hashed, least_G[:, None], holder_G[:, None], ids_GM)
        key_GM = _key_of(tl.where(is_kept_GM, noised_GM, NEVER), ids_GM)
        here = tl.max(key_GM)
        next_here = tl.max(tl.where(key_GM == here, NO_KEY, key_GM))
        second = tl.maximum(tl.minimum(best, here), tl.maximum(second, next_here))
        best = tl.maximum(best, here)
    return best, second


@triton.jit
def _key_of(noised, ids):
    """Return int64 keys in the order of noised scores; of equal ones the lowest id comes first."""
    return (ordered(noised).to(tl.int64) << 32) | (ids ^ LARGEST_ID).to(tl.int64)


@triton.jit
def _value_of(key):
    """Return the noised score of a key."""
    return tl.where(key == NO_KEY, NEVER, unordered((key >> 32).to(tl.int32)))


@triton.jit
def _id_of(key):
    return (key & 0xFFFFFFFF).to(tl.int32) ^ LARGEST_ID


@triton.jit
def _score_of(source, key):
    """Return the score of the token of a key, without noise."""
    logits_at, vocab_size, changes, temperature = source[:4]
    return tl.div_rn(shaped(logits_at, _id_of(key), vocab_size, changes), temperature)
