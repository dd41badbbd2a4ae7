"""Packed linear layers are linear layers; our kernel gives a line the same result beside any other lines."""

import copy

import pytest
import torch
from torch.nn.functional import silu

from decoding.fused import kernels
from decoding.fused.decoder import FUSED_LINEARS
from decoding.fused.linear import KernelLinear
from decoding.fused.packed_linear import (
    InvariantLinear,
    Packed,
    PackedLinear,
    can_pack,
    pack_linears,
    use_library_products,
)
from tests.decoding.tiny import build, llama_config

SHAPES = [(7, 4), (64, 32), (33, 80), (96, 1026)]  # outputs, inputs
DTYPES = [torch.float32, torch.bfloat16]


def kernel_layer(linear: torch.nn.Linear) -> KernelLinear:
    function = kernels.load_linear(linear.weight.dtype)
    if function is None:
        pytest.skip("no compiler here, or no AVX2")
    return KernelLinear(linear.weight, linear.bias, function)


def onednn_layer(linear: torch.nn.Linear) -> PackedLinear:
    if not can_pack(linear.weight):
        pytest.skip("oneDNN does not multiply this dtype here")
    return PackedLinear(linear.weight, linear.bias)


def random_linear(shape: tuple[int, int], dtype: torch.dtype, *, bias: bool = True, seed: int = 0) -> torch.nn.Linear:
    torch.manual_seed(seed)
    return torch.nn.Linear(shape[1], shape[0], bias=bias).to(dtype).requires_grad_(False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("make", [kernel_layer, onednn_layer])
def test_a_packed_linear_is_a_linear(make, bias, shape, dtype):
    linear, gate = random_linear(shape, dtype, bias=bias), random_linear(shape, dtype, bias=bias, seed=1)
    packed: Packed = make(linear)
    x = 3 * torch.randn(2, 9, shape[1]).to(dtype)
    y = torch.randn(2, 9, shape[0]).to(dtype)
    expected = copy.deepcopy(linear).double()(x.double())
    gated = silu(copy.deepcopy(gate).double()(x.double())) * expected
    # Rounding to bfloat16 once, or (oneDNN) at each step.
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(packed(x).double(), expected, **tolerance)
    torch.testing.assert_close(packed.plus(x, y).double(), expected + y.double(), **tolerance)
    torch.testing.assert_close(packed.gated(x, make(gate)).double(), gated, **tolerance)
    assert torch.equal(packed.weight, linear.weight)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_line_gets_the_same_result_beside_any_other_lines(dtype, shape):
    layer = kernel_layer(random_linear(shape, dtype))
    gate = kernel_layer(random_linear(shape, dtype, seed=1))
    x, y = torch.randn(200, shape[1]).to(dtype), torch.randn(200, shape[0]).to(dtype)
    alone = torch.cat([layer.plus(x[n : n + 1], y[n : n + 1]) for n in range(200)])
    gated_alone = torch.cat([layer.gated(x[n : n + 1], gate) for n in range(200)])
    for num_lines in (*range(2, 40), 100, 193, 200):
        assert torch.equal(layer.plus(x[:num_lines], y[:num_lines]), alone[:num_lines])
        assert torch.equal(layer.gated(x[:num_lines], gate), gated_alone[:num_lines])


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_in_one_line_stays_there(dtype):
    layer, gate = kernel_layer(random_linear((40, 32), dtype)), kernel_layer(random_linear((40, 32), dtype, seed=1))
    x = torch.randn(14, 32).to(dtype)
    x[3, 5], x[4] = float("nan"), float("inf")
    is_finite_N = layer.gated(x, gate).isfinite().all(-1)
    assert not is_finite_N[3]
    assert not is_finite_N[4]
    assert is_finite_N.sum() == 12


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gate_far_below_zero_closes(dtype):
    linear = random_linear((32, 2), dtype, bias=False)
    linear.weight.fill_(1.0)
    layer = kernel_layer(linear)
    x = torch.tensor([[-60.0, -60.0], [-1e30, -1e30], [500.0, 500.0]]).to(dtype)
    closed, shut, opened = layer.gated(x, layer)[:, 0].tolist()
    assert abs(closed) < 1e-30
    assert abs(shut) < 1e24  # a gate of almost zero times a huge number, where the truth is zero
    assert opened == pytest.approx(1e6, rel=1e-2)


def test_input_of_another_kind_is_refused():
    layer = kernel_layer(random_linear((8, 16), torch.float32))
    with pytest.raises(TypeError, match=r"16 inputs in torch\.float32 got \(2, 16\) in torch\.bfloat16"):
        layer(torch.zeros(2, 16, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match=r"got \(2, 15\)"):
        layer(torch.zeros(2, 15))
    with pytest.raises(TypeError, match=r"cannot add \(1, 8\)"):
        layer.plus(torch.zeros(2, 16), torch.zeros(1, 8))


def test_layers_of_a_gpu_give_way_to_torchs_own_over_the_same_weights():
    """What a probe does where the GPU kernels cannot run; making the layers runs no kernel."""
    pytest.importorskip("triton")
    network = build(llama_config(), seed=1)
    plain = {name: weight.clone() for name, weight in network.state_dict().items()}
    pack_linears(network, FUSED_LINEARS, is_exact=True)
    assert any(isinstance(module, InvariantLinear) for module in network.modules())
    use_library_products(network)
    assert not any(isinstance(module, InvariantLinear) for module in network.modules())
    attention = network.model.layers[0].self_attn
    assert type(attention.q_proj.fused) is torch.nn.Linear
    assert attention.q_proj.fused is attention.v_proj.fused
    assert torch.equal(attention.k_proj.weight, plain["model.layers.0.self_attn.k_proj.weight"])
    assert torch.equal(network.lm_head.weight, plain["lm_head.weight"])
