"""The noise of `decoding/noise.py` inside kernels: the same hashes, the same blocks of 64 tokens, the same numbers.

The hashes are equal bit for bit. The logarithm is a polynomial of our own, because the hardware's is coarse near 1,
where the noise of the tokens that win is made; it computes the same bits on every GPU and in Triton's interpreter, and
differs from torch's by at most a few units in the last place.
"""

import triton
import triton.language as tl

from decoding.noise import BLOCK as _BLOCK
from decoding.noise import GOLDEN as _GOLDEN
from decoding.noise import MULTIPLIERS as _MULTIPLIERS
from decoding.noise import SHIFTS as _SHIFTS
from decoding.noise import Stream

BLOCK = tl.constexpr(_BLOCK)
GOLDEN = tl.constexpr(_GOLDEN)
NUM_STREAMS = tl.constexpr(len(Stream))
SHARED = tl.constexpr(int(Stream.SHARED))
FIRST_SHIFT, SECOND_SHIFT, THIRD_SHIFT = (tl.constexpr(shift) for shift in _SHIFTS)
FIRST_MULTIPLIER, SECOND_MULTIPLIER = (tl.constexpr(multiplier) for multiplier in _MULTIPLIERS)
LARGEST_UNIFORM = tl.constexpr(1 - 2.0**-24)


@triton.jit
def position_hash(key, position):
    """Return the hash of a row's position, uint64, from the row's key (int64): of the noise that coupling shares."""
    counter = position.to(tl.uint64) * NUM_STREAMS + SHARED
    return _mix(key.to(tl.uint64) + _mix(counter * GOLDEN))


@triton.jit
def least_of_blocks(hash_of_position, blocks):
    """Return the least exponential number of each block, float32, and the token id that has it, int32."""
    hashes = _mix(hash_of_position + (blocks + 1).to(tl.uint64) * GOLDEN)
    holders = blocks * BLOCK + (hashes & (BLOCK - 1)).to(tl.int32)
    return _exponential(hashes) * (1.0 / BLOCK), holders


@triton.jit
def gumbel(hash_of_position, least, holders, ids):
    """Return the Gumbel noise of token ids, float32, given what `least_of_blocks` says of their blocks."""
    hashes = _mix(_mix(hash_of_position) + (ids + 1).to(tl.uint64) * GOLDEN)
    return -logarithm(tl.where(ids == holders, 0.0, _exponential(hashes)) + least)


@triton.jit
def logarithm(x):
    """Return the natural logarithm of positive normal numbers, float32, within 1.5 units in the last place.

    The polynomial is that of the Cephes library (Moshier, https://www.netlib.org/cephes, single/logf.c).
    """
    bits = x.to(tl.int32, bitcast=True)
    exponent = ((bits >> 23) - 126).to(tl.float32)
    mantissa = ((bits & 0x7FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)  # from 0.5 to 1
    is_small = mantissa < 0.70710678118654752440
    exponent = tl.where(is_small, exponent - 1.0, exponent)
    f = tl.where(is_small, mantissa + mantissa, mantissa) - 1.0
    square = f * f
    p = f * 7.0376836292e-2 - 1.1514610310e-1
    p = p * f + 1.1676998740e-1
    p = p * f - 1.2420140846e-1
    p = p * f + 1.4249322787e-1
    p = p * f - 1.6668057665e-1
    p = p * f + 2.0000714765e-1
    p = p * f - 2.4999993993e-1
    p = p * f + 3.3333331174e-1
    p = p * f * square - exponent * 2.12194440e-4 - square * 0.5
    return (f + p) + exponent * 0.693359375


@triton.jit
def _exponential(hashes):
    """Turn hashes into exponential numbers of rate 1, float32: -log(1 - u), accurate for small u, too."""
    n = (hashes >> 11).to(tl.int64)
    # u = (n + 1/2) / 2^53, rounded as torch rounds it: to float64 (which drops the half of a large n) and then float32.
    halves = tl.where(n >= 2**52, 2 * (n + (n & 1)), 2 * n + 1)
    u = tl.minimum(halves.to(tl.float32) * 2.0**-54, LARGEST_UNIFORM)
    rest = 1.0 - u
    lost = -u - (rest - 1.0)  # what rounding took from `rest`
    return -(logarithm(rest) + tl.div_rn(lost, rest))


@triton.jit
def _mix(x):
    x = (x ^ (x >> FIRST_SHIFT)) * FIRST_MULTIPLIER
    x = (x ^ (x >> SECOND_SHIFT)) * SECOND_MULTIPLIER
    return x ^ (x >> THIRD_SHIFT)
