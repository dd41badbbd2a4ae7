"""Kernels that add the parts of the product before them: bit for bit what the kernels compute that stand apart."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks.roofline.launched import OTHER_KERNELS
from decoding.fused.packed_linear import InvariantLinear
from decoding.fused.recordings import LAYER_KERNELS
from decoding.gpu import attention, linear
from decoding.gpu.kernels import attention as attention_kernels
from decoding.gpu.kernels import linear as linear_kernels
from decoding.gpu.tiles import Tile
from decoding.network.language_model import LanguageModel
from tests.decoding.tiny import build, llama_config

WAYS = ("parts apart", "whole")
NUM_LINES, NUM_INPUTS = 5, 2100  # four parts


# In float32 each last bit of a sum is seen; in 16 bits, where it is rounded.
KINDS = [(torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False)]


def layer(num_outputs: int, way: str, dtype: torch.dtype, has_bias: bool) -> InvariantLinear:
    torch.manual_seed(2)
    weight_OI = (torch.randn(num_outputs, NUM_INPUTS) / NUM_INPUTS**0.5).to(dtype)
    made = InvariantLinear(weight_OI, torch.randn(num_outputs).to(dtype) if has_bias else None)
    made.tiles = {(1, 16): Tile(64, 16, 4, 3, is_whole=way == "whole")}
    return made


@pytest.mark.parametrize(("dtype", "has_bias"), KINDS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_outputs", [96, 70])
def test_a_norm_that_adds_parts_computes_what_two_kernels_do(num_outputs, way, dtype, has_bias):
    of = layer(num_outputs, way, dtype, has_bias)
    x_NI, other_NE = torch.randn(NUM_LINES, NUM_INPUTS).to(dtype), torch.randn(NUM_LINES, num_outputs).to(dtype)
    norm_E = torch.randn(num_outputs).to(dtype)
    apart_NE = of.plus(x_NI, other_NE)
    found_NE, normed_NE = of.plus_and_norm(x_NI, other_NE, norm_E, 1e-5)
    assert len(of.sums(x_NI).parts_CNO) == {"parts apart": 4, "whole": 1}[way]
    assert torch.equal(found_NE, apart_NE)
    assert torch.equal(normed_NE, linear.rms_norm(apart_NE, norm_E, 1e-5))


@pytest.mark.parametrize(("dtype", "has_bias"), KINDS)
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_heads_that_are_split_from_parts_are_those_of_the_whole_product(way, has_norms, dtype, has_bias):
    num_heads, num_kv_heads, head_size = 4, 2, 16
    of = layer((num_heads + 2 * num_kv_heads) * head_size, way, dtype, has_bias)
    x_NI = torch.randn(NUM_LINES, NUM_INPUTS).to(dtype)
    tables = torch.randn(9, head_size).to(dtype), torch.randn(9, head_size).to(dtype)
    norms = (torch.randn(head_size).to(dtype), torch.randn(head_size).to(dtype), 1e-5) if has_norms else None
    places_N = torch.arange(NUM_LINES)
    rows = attention.TokenRows(torch.tensor([0, NUM_LINES]), places_N * 0, places_N, NUM_LINES, NUM_LINES)
    found = []
    for qkv in (of(x_NI), of.sums(x_NI)):
        keys_SHPD, values_SHPD = (torch.zeros(1, num_kv_heads, 9, head_size).to(dtype) for _ in range(2))
        query_NQD = attention.split_and_store(qkv, keys_SHPD, values_SHPD, rows, places_N, tables, norms)
        found.append((query_NQD, keys_SHPD, values_SHPD))
    assert all(map(torch.equal, *found))
    assert all(each.any() for each in found[0])


def test_a_forward_starts_as_many_kernels_as_the_prediction_counts(monkeypatch):
    """The kernels are counted, and compute nothing."""
    started: list[str] = []

    def count(name: str) -> SimpleNamespace:
        def start(*_: object, **__: object) -> None:
            started.append(name)

        return type("Kernel", (), {"__getitem__": lambda self, grid: start})()

    for module, names in (
        (linear_kernels, ("multiply", "add_parts", "rms_norm")),
        (attention_kernels, ("attend", "merge")),
        (attention, ("split_heads",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, count(name))
    numbers = []
    for num_layers in (1, 3):
        sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": num_layers}
        config = llama_config(**sizes, intermediate_size=1100)  # whose last product has parts
        model = LanguageModel(build(config, seed=1).bfloat16(), frozenset())
        model.exact = "on"
        model.speed_up()
        model.allocate(2, 20)
        started.clear()
        model.forward([0, 0], torch.ones(2, 3, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64))
        numbers.append(len(started))
    assert numbers == [LAYER_KERNELS + OTHER_KERNELS, 3 * LAYER_KERNELS + OTHER_KERNELS]
