"""Products and norms of the GPU kernels, in the interpreter: right, and a line does not depend on the others."""

import pytest
import torch
from torch.nn.functional import rms_norm as torch_rms_norm
from torch.nn.functional import silu

from decoding.fused.packed_linear import InvariantLinear
from decoding.gpu.linear import rms_norm
from tests.pairs_of_values import every_pair

CUT = 2**-7  # the interpreter cuts numbers down to bfloat16, where a GPU rounds them
SHAPES = [(200, 96), (96, 2100), (70, 1025)]  # outputs, inputs: no multiples of a tile; the last two have parts


def layer(shape: tuple[int, int], dtype: torch.dtype, has_bias: bool = True) -> InvariantLinear:
    weight_OI = (torch.randn(shape) / shape[1] ** 0.5).to(dtype)
    return InvariantLinear(weight_OI, torch.randn(shape[0]).to(dtype) if has_bias else None)


def exact(of: InvariantLinear, x_NI: torch.Tensor) -> torch.Tensor:
    bias = 0.0 if of.bias is None else of.bias.double()
    return x_NI.double() @ of.weight.double().T + bias


@pytest.mark.parametrize(
    ("shape", "dtype", "num_lines"), every_pair(SHAPES, [torch.float32, torch.bfloat16], [1, 20]), ids=str
)
def test_products_are_those_of_float64_rounded_once(shape, dtype, num_lines):
    torch.manual_seed(num_lines)
    up, gate = layer(shape, dtype), layer(shape, dtype)
    x, other = torch.randn(num_lines, shape[1]).to(dtype), torch.randn(num_lines, shape[0]).to(dtype)
    expected = {
        "forward": (up(x), exact(up, x)),
        "plus": (up.plus(x, other), exact(up, x) + other.double()),
        "gated": (up.gated(x, gate), silu(exact(gate, x)) * exact(up, x)),
    }
    rounding = {torch.float32: 1e-5, torch.bfloat16: CUT}[dtype]
    for name, (found, truth) in expected.items():
        assert ((found.double() - truth).abs() <= rounding * truth.abs() + 2e-6).all(), name


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_a_line_has_the_same_bits_alone_and_among_any_others(shape):
    """In float32, whose tiles have one size: the interpreter's BLAS adds otherwise for another one."""
    dtype = torch.float32
    torch.manual_seed(5)
    up, gate = layer(shape, dtype), layer(shape, dtype)
    x = torch.randn(140, shape[1]).to(dtype)
    whole, gated, added = up(x), up.gated(x, gate), up.plus(x, torch.ones(140, shape[0]).to(dtype))
    for first, end in ((7, 8), (5, 10), (100, 116), (0, 64)):
        assert torch.equal(up(x[first:end]), whole[first:end])
        assert torch.equal(up.gated(x[first:end], gate), gated[first:end])
        ones = torch.ones(end - first, shape[0]).to(dtype)
        assert torch.equal(up.plus(x[first:end], ones), added[first:end])


@pytest.mark.parametrize("size", [32, 96, 4097])
def test_a_norm_is_torchs_and_that_of_its_own_line(size):
    torch.manual_seed(size)
    x, weight = torch.randn(5, size).bfloat16(), torch.randn(size).bfloat16()
    found = rms_norm(x, weight, 1e-5)
    expected = torch_rms_norm(x.double(), (size,), weight.double(), 1e-5)
    assert ((found.double() - expected).abs() <= CUT * expected.abs() + 1e-6).all()
    assert torch.equal(rms_norm(x[3:4], weight, 1e-5)[0], found[3])
