"""Fp8Linear: what it computes, alone and with other layers."""

import pytest
import torch
from torch.nn.functional import silu

from decoding.fp8 import exact
from decoding.fp8.linear import Fp8Linear, Scaling, may_join
from tests.decoding.fp8.checkpoints import quantized

SCALINGS = {"blocks": Scaling("weight_scale_inv", 128, 128), "rows": Scaling("weight_scale", 1, None)}
KINDS = list(SCALINGS)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def layer(kind: str, num_outputs: int, *, has_bias: bool = True) -> Fp8Linear:
    """A layer of 320 inputs: two blocks and a half."""
    weight_OI, scales_SG = quantized(normal(num_outputs, 320), kind)
    made = Fp8Linear(320, num_outputs, has_bias, SCALINGS[kind], exact).requires_grad_(False)
    made.weight.copy_(weight_OI)
    made.scales.copy_(scales_SG)
    if made.bias is not None:
        made.bias.copy_(normal(num_outputs))
    return made


class Network(torch.nn.Module):
    """Layers by their names."""

    def __init__(self, **layers: torch.nn.Module) -> None:
        super().__init__()
        for name, each in layers.items():
            setattr(self, name, each)


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_a_product_is_done_as_transformers_code_does_it(kind):
    up, gate, x_NI, other_NO = layer(kind, 256), layer(kind, 256), normal(4, 320).bfloat16(), normal(4, 256).bfloat16()
    gate.weight.copy_(up.weight.float().flip(0))
    assert torch.equal(up.plus(x_NI, other_NO), up(x_NI) + other_NO)
    assert torch.equal(up.gated(x_NI, gate), silu(gate(x_NI)) * up(x_NI))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_silu_is_the_same_in_every_place_of_a_tensor(dtype):
    """The processor computes several numbers at once; those that are left over must not come out otherwise."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    every = every[every.isfinite()]
    for size in (1, 7):
        assert torch.equal(torch.cat([silu(part) for part in every.split(size)]), silu(every))


@pytest.mark.parametrize("kind", KINDS)
def test_layers_side_by_side_compute_what_they_compute_alone_bit_for_bit(kind):
    parts, x_NI = [layer(kind, 256), layer(kind, 128), layer(kind, 100)], normal(5, 320).bfloat16()
    joined = Fp8Linear.side_by_side(parts)
    assert joined.weight.dtype is torch.float8_e4m3fn
    assert torch.equal(joined(x_NI), torch.cat([part(x_NI) for part in parts], dim=-1))


def test_layers_that_one_layer_cannot_replace_are_told():
    plain = torch.nn.Linear(320, 128)
    names = ("first", "second")
    assert may_join(Network(first=plain, second=plain), names)
    assert may_join(Network(), names)
    assert may_join(Network(first=layer("blocks", 128), second=layer("blocks", 100)), names)
    assert not may_join(Network(first=layer("blocks", 100), second=layer("blocks", 128)), names)  # a part of a block
    assert may_join(Network(first=layer("rows", 100), second=layer("rows", 128)), names)
    assert not may_join(Network(first=layer("rows", 128), second=plain), names)
    assert not may_join(Network(first=layer("rows", 128), second=layer("rows", 128, has_bias=False)), names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float8_e4m3fn])
def test_inputs_of_another_dtype_are_not_rounded_quietly(dtype):
    with pytest.raises(TypeError, match="takes bfloat16 or float16"):
        layer("rows", 128)(normal(2, 320).to(dtype))
