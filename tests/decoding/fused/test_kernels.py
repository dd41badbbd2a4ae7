"""The CPU kernels of a forward, beside torch's own operations."""

import math

import pytest
import torch

from decoding.families.norms import torch_norm
from decoding.fused import kernels


@pytest.fixture
def compiler():
    """There is one."""
    if kernels.load(torch.float32, 16, 64) is None:
        pytest.skip("no C++ compiler here")


@pytest.mark.parametrize(
    ("dtype", "head_size", "hidden"), [(torch.float16, 64, 128), (torch.float32, 40, 128), (torch.float32, 64, 100)]
)
def test_unsupported_sizes_are_left_to_torch(dtype, head_size, hidden):
    assert kernels.load(dtype, head_size, hidden) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normalization_is_that_of_torch(compiler, dtype):
    functions = kernels.load(dtype, 64, 128)
    x = (torch.randn(20, 128, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    weight = torch.linspace(-2, 2, 128).to(dtype)
    expected = torch.nn.functional.rms_norm(x.double(), (128,), weight.double(), 1e-5)
    found = functions.rms_norm(x, weight, 1e-5).double()
    unit = torch.finfo(dtype).eps
    assert float(((found - expected).abs() / expected.abs().clamp(min=1e-3)).max()) <= 2 * unit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_centered", [False, True])
def test_normalization_with_an_offset_is_that_of_torch(compiler, dtype, is_centered):
    x = (torch.randn(20, 128, generator=torch.Generator().manual_seed(0)) * 3 + 1).to(dtype)
    weight = torch.linspace(-2, 2, 128).to(dtype)
    centered = x.double() - x.double().mean(-1, keepdim=True) if is_centered else x.double()
    expected = torch.nn.functional.rms_norm(centered, (128,), 1 + weight.double(), 1e-5)
    unit = torch.finfo(dtype).eps
    for norm in (kernels.load(dtype, 64, 128).rms_norm, torch_norm):
        found = norm(x, weight, 1e-5, 1.0, is_centered).double()
        assert float(((found - expected).abs() / expected.abs().clamp(min=1)).max()) <= 4 * unit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_soft_caps_are_those_of_torch_for_any_number_and_do_not_depend_on_neighbours(compiler, dtype):
    functions = kernels.load(dtype, 64, 128)
    sizes = torch.logspace(-6, 4, 501)
    x = torch.cat([sizes, -sizes, torch.tensor([0.0, math.inf, -math.inf])]).to(dtype)
    capped = x.clone()
    functions.softcap(capped, 30.0)
    expected = 30 * (x.double() / 30).tanh()
    assert (
        float(((capped.double() - expected).abs() / expected.abs().clamp(min=1e-9)).max()) <= 4 * torch.finfo(dtype).eps
    )
    for first, end in ((0, 1), (3, 20), (500, 1005)):
        part = x[first:end].clone()
        functions.softcap(part, 30.0)
        assert torch.equal(part, capped[first:end])
    nan = torch.full((3,), math.nan, dtype=dtype)
    functions.softcap(nan, 30.0)
    assert nan.isnan().all()


def test_normalization_passes_on_values_that_are_not_finite(compiler):
    functions = kernels.load(torch.bfloat16, 64, 128)
    x = torch.ones(2, 128, dtype=torch.bfloat16)
    x[1, 5] = math.nan
    found = functions.rms_norm(x, torch.ones(128, dtype=torch.bfloat16), 1e-5)
    assert found[0].isfinite().all()
    assert found[1].isnan().all()
