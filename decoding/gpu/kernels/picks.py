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

from decoding.gpu.kernels import noise, race, scores
from decoding.gpu.kernels.noise import BLOCK
from decoding.gpu.kernels.scores import NEVER, fixed, number, ordered, shaped, unordered


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
    inputs = (
        logits, row_stride, position_stride, columns, biases, counts, count_rows, drafted, drafted_stride,
        num_drafted, lengths, vocab_size, num_positions, first, num_stop_ids,
    )  # fmt: skip
    logits_at, columns_at, changes, _ = scores.at(place, inputs)
    blocks_G = chunk * CHUNK + tl.arange(0, CHUNK)
    ids_GM = blocks_G[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    logits_GM = shaped(logits_at, ids_GM, vocab_size, changes)
    has_nan_G = tl.max((logits_GM != logits_GM).to(tl.int32), axis=1) > 0
    max_G = tl.max(tl.where(logits_GM == logits_GM, logits_GM, NEVER), axis=1)
    num_blocks = tl.cdiv(vocab_size, BLOCK)
    block_max_at = block_max + place.to(tl.int64) * num_blocks
    tl.store(block_max_at + blocks_G, tl.where(has_nan_G, float("nan"), max_G), mask=blocks_G < num_blocks)
    top_k = tl.load(columns_at + scores.TOP_K)
    if (number(columns_at, scores.TOP_P) < 1) & ((top_k == 0) | (top_k >= vocab_size)):  # a cut by all of the mass
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
    inputs = (
        logits, row_stride, position_stride, columns, biases, counts, count_rows, drafted, drafted_stride,
        num_drafted, lengths, vocab_size, num_positions, first, num_stop_ids,
    )  # fmt: skip
    logits_at, columns_at, changes, position = scores.at(place, inputs)
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

    best_key, second_key = tl.full((), race.NO_KEY, tl.int64), tl.full((), race.NO_KEY, tl.int64)
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
                least = unordered(race.last_key(key_N, (max_N > NEVER).to(tl.int64), top_k.to(tl.float64)))
            bound = race.kth_score(source, least, top, top_k, PART, GROUP)
            if top_p < 1:
                num_read = race.list_reaching(source, bound, PART)
                mass, _ = race.mass_before(source, num_read, top, bound, -1, bound, -1, GROUP)
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
                bound = tl.maximum(bound, unordered(race.last_key(key_N, weights_N, mass_limit)))

        samples = tl.load(columns_at + scores.SAMPLES) != 0
        hashed = noise.position_hash(tl.load(columns_at + scores.KEY), position)
        is_settled = False
        while not is_settled:
            num_read = race.list_racing(source, hashed, samples, bound, bound_id, PART)
            best_key, second_key = race.winners(source, num_read, hashed, samples, bound, bound_id, GROUP)
            best_score = race.score_of(source, best_key)
            is_settled = mass_limit == float("inf")
            if not is_settled:
                low, low_id, high, high_id = best_score, race.id_of(best_key), best_score, race.id_of(best_key)
                if race.value_of(second_key) > NEVER:
                    score, token_id = race.score_of(source, second_key), race.id_of(second_key)
                    if (score < low) | ((score == low) & (token_id < low_id)):
                        low, low_id = score, token_id
                    else:
                        high, high_id = score, token_id
                num_read = race.list_reaching(source, low, PART)
                low_mass, high_mass = race.mass_before(source, num_read, top, low, low_id, high, high_id, GROUP)
                is_settled = low_mass.to(tl.float64) < mass_limit
                if not is_settled:
                    is_high_kept = high_mass.to(tl.float64) < mass_limit
                    bound = tl.where(is_high_kept, low, high)
                    bound_id = tl.where(is_high_kept, low_id, high_id) + 1
    num_places = tl.num_programs(0)
    tl.store(token_ids + place, tl.where(is_sound, race.id_of(best_key), 0).to(tl.int64))
    tl.store(values + place, race.value_of(best_key))
    tl.store(values + num_places + place, race.value_of(second_key))
    tl.store(values + 2 * num_places + place, best_score)
    tl.store(is_finite + place, is_sound)
