"""The noise inside kernels is that of `decoding/noise.py` but for the last bits of its logarithms."""

import torch
import triton
import triton.language as tl

from decoding import noise
from decoding.gpu.kernels.noise import BLOCK, _exponential, gumbel, least_of_blocks, logarithm, position_hash
from decoding.noise import GumbelNoise, Stream, noise_key

_SIZE = tl.constexpr(1024)


@triton.jit
def _logarithms(x, out):
    index = tl.arange(0, _SIZE)
    tl.store(out + index, logarithm(tl.load(x + index)))


@triton.jit
def _exponentials(hashes, out):
    index = tl.arange(0, _SIZE)
    tl.store(out + index, _exponential(tl.load(hashes + index).to(tl.uint64)))


@triton.jit
def _noise(key, position, out):
    ids = tl.arange(0, _SIZE)
    hashed = position_hash(tl.load(key), tl.load(position))
    least, holders = least_of_blocks(hashed, ids // BLOCK)
    tl.store(out + ids, gumbel(hashed, least, holders, ids))


def _ulps(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference in units of the last place of the expected float64 numbers, as float32 has them."""
    size = expected.abs().float()
    unit = torch.ldexp(torch.ones_like(size), torch.frexp(size).exponent - 24).double()
    return float(((found.double() - expected).abs() / unit).max())


def test_a_logarithm_is_right_within_one_and_a_half_units_in_the_last_place():
    generator = torch.Generator().manual_seed(0)
    near_1 = 1 + (torch.rand(_SIZE.value, generator=generator) - 0.5) * torch.logspace(-6, 0, _SIZE.value)
    for x in (torch.logspace(-18, 3, _SIZE.value), near_1, torch.logspace(-37, 37, _SIZE.value)):
        found = torch.empty(_SIZE.value)
        _logarithms[1,](x, found)
        assert _ulps(found[x != 1], x[x != 1].double().log()) <= 1.5
    _logarithms[1,](torch.ones(_SIZE.value), found)
    assert not found.any()


def test_exponential_numbers_are_torchs_also_of_the_smallest_and_the_largest_hashes():
    generator = torch.Generator().manual_seed(1)
    hashes = torch.randint(-(2**63), 2**63 - 1, (_SIZE.value,), generator=generator)
    small = torch.tensor([0, 1, 2**11 - 1, 2**11, 2**40, 2**62, 2**63 - 1])
    hashes[: 2 * len(small)] = torch.cat([small, -1 - small])  # the second half are the largest, without a sign
    found = torch.empty(_SIZE.value)
    _exponentials[1,](hashes, found)
    assert found.isfinite().all()
    assert (found > 0).all()
    assert _ulps(found, noise._exponential(hashes.clone()).double()) <= 3


def test_the_noise_of_a_position_is_torchs_token_by_token():
    for row, position in ((0, 1), (7, 4095), (1, 2**31 + 5)):
        key, place = torch.tensor([noise_key(3, row, 0)]), torch.tensor([position])
        found = torch.empty(_SIZE.value)
        _noise[1,](key, place, found)
        expected = GumbelNoise.draw(key, place[None], _SIZE.value, Stream.SHARED).dense(_SIZE.value)[0, 0]
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
