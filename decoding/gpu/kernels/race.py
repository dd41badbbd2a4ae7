"""What a pick reads of one position: the blocks that could matter, their tokens' scores, and the race among these.

A `source` is a position's logits, the vocabulary's size, what changes the logits, the temperature, the largest scores
of the blocks, their number, and a list of blocks to read. Shapes are those of `decoding/gpu/kernels/picks.py`.
"""

import triton
import triton.language as tl

from decoding.gpu.kernels import noise
from decoding.gpu.kernels.noise import BLOCK
from decoding.gpu.kernels.scores import NEVER, fixed, ordered, shaped, unordered

NO_KEY = tl.constexpr(-(2**63))  # below every key of a noised score
LARGEST_ID = tl.constexpr(2**31 - 1)
SLACK = tl.constexpr(1e-4)  # bounds hold up to the last bits of a logarithm and of sums


@triton.jit
def list_reaching(source, bound, PART: tl.constexpr):
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
def list_racing(source, hashed, samples, bound, bound_id, PART: tl.constexpr):
    """List the blocks that may have one of the two best noised scores among the kept tokens; return their number.

    One noised score of each block is known cheaply: that of the token with the block's largest noise, or without noise
    the largest score. The second best of these is a floor under the two best of all.
    """
    logits_at, vocab_size, changes, temperature, _, num_blocks, _ = source
    best, second = tl.full((), NEVER, tl.float32), tl.full((), NEVER, tl.float32)
    for start in range(0, num_blocks, PART):
        block_Q, known_Q = _largest(source, start, PART)
        if samples:
            least_Q, holder_Q = noise.least_of_blocks(hashed, block_Q)
            score_Q = tl.div_rn(shaped(logits_at, holder_Q, vocab_size, changes), temperature)
            is_kept_Q = _is_kept(score_Q, holder_Q, bound, bound_id)
            known_Q = tl.where(is_kept_Q, score_Q - noise.logarithm(least_Q), NEVER)
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
def last_key(key_N, weights_N, limit):
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
def kth_score(source, least, top, top_k, PART: tl.constexpr, GROUP: tl.constexpr):
    """Return the k-th largest score of all tokens, which is at least `least`; equal scores count each."""
    num_read = list_reaching(source, least, PART)
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
def mass_before(source, num_read, top, low, low_id, high, high_id, GROUP: tl.constexpr):
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
def winners(source, num_read, hashed, samples, bound, bound_id, GROUP: tl.constexpr):
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
def value_of(key):
    """Return the noised score of a key."""
    return tl.where(key == NO_KEY, NEVER, unordered((key >> 32).to(tl.int32)))


@triton.jit
def id_of(key):
    return (key & 0xFFFFFFFF).to(tl.int32) ^ LARGEST_ID


@triton.jit
def score_of(source, key):
    """Return the score of the token of a key, without noise."""
    logits_at, vocab_size, changes, temperature = source[:4]
    return tl.div_rn(shaped(logits_at, id_of(key), vocab_size, changes), temperature)
