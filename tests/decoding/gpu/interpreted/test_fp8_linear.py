"""The FP8 kernels compute what `decoding/fp8/exact.py` defines, and a line's numbers depend on no other line."""

from typing import Any

import pytest
import torch

from decoding.fp8 import exact
from decoding.fp8.linear import arithmetic_on
from decoding.gpu import fp8_linear
from decoding.network.language_model import LanguageModel
from decoding.network.probe import FP8_TOLERANCE
from decoding.network.probe_rows import relative_deviation
from tests.decoding.fp8.checkpoints import quantized, saved_fp8
from tests.decoding.tiny import random_prompts

# outputs, inputs, kind of scales, bias: whole tiles, parts of tiles, parts of blocks, fewer inputs than a step
SIZES = [(256, 256, "blocks", True), (200, 320, "blocks", False), (96, 320, "rows", True), (40, 48, "rows", False)]
NUM_LINES = 70  # two tiles
# Halves of steps between two FP8 numbers, where Triton's own conversions round wrong: a line of 448 and of them.
TIES = torch.tensor([448.0, *[(2 * n + 1) * 2.0**e for e in range(-10, 3) for n in range(16)]])


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def lines(num_inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """Lines of very different sizes, a line of zeros, and lines with a number that is not finite."""
    x_NI = normal(NUM_LINES, num_inputs) * normal(NUM_LINES, 1).mul(2).exp()
    x_NI[3], x_NI[66, 7], x_NI[67, 40] = 0.0, float("nan"), float("inf")
    return x_NI.to(dtype)


def group_size(kind: str, num_inputs: int) -> int:
    return 128 if kind == "blocks" else num_inputs


def weight(num_outputs: int, num_inputs: int, kind: str, has_bias: bool) -> tuple[Any, ...]:
    """The arguments of `multiply` that are a layer's."""
    weight_OI, scales_SG = quantized(normal(num_outputs, num_inputs), kind)
    bias_O = normal(num_outputs).bfloat16() if has_bias else None
    return weight_OI, scales_SG.float(), 128 if kind == "blocks" else 1, group_size(kind, num_inputs), bias_O


def test_the_kernels_are_what_runs_here():
    assert arithmetic_on(torch.device("cpu")) is fp8_linear


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", SIZES)
def test_activations_are_rounded_bit_for_bit_as_defined(size, dtype):
    _, num_inputs, kind, _ = size
    x_NI, group = lines(num_inputs, dtype), group_size(kind, num_inputs)
    quantized_NI, scales_NG = fp8_linear.quantize(x_NI, group)
    expected_NI, expected_NG = exact.quantize(x_NI, group)
    is_finite_NG = expected_NG.isfinite()
    assert torch.equal(scales_NG.isfinite(), is_finite_NG)
    assert torch.equal(scales_NG[is_finite_NG], expected_NG[is_finite_NG])
    is_finite_NI = is_finite_NG.repeat_interleave(group, 1)[:, :num_inputs]
    assert torch.equal(quantized_NI.float()[is_finite_NI], expected_NI.float()[is_finite_NI])


def test_ties_go_to_the_even_number():
    x_1I = TIES[None].bfloat16()
    found_1I, _ = fp8_linear.quantize(x_1I, len(TIES))
    assert torch.equal(found_1I.float(), exact.quantize(x_1I, len(TIES))[0].float())


@pytest.mark.parametrize("size", SIZES)
def test_products_are_those_of_the_exact_definition_but_for_float32_sums(size):
    _, num_inputs, kind, _ = size
    rounded = exact.quantize(lines(num_inputs, torch.bfloat16), group_size(kind, num_inputs))
    expected_NO = exact.multiply(*rounded, *weight(*size), torch.float64)
    found_NO = fp8_linear.multiply(*rounded, *weight(*size), torch.float32).double()
    is_finite_N = expected_NO.isfinite().all(-1)
    assert is_finite_N.sum() == NUM_LINES - 2
    assert not found_NO[~is_finite_N].isfinite().any()
    size_N1 = expected_NO[is_finite_N].abs().amax(-1, keepdim=True).clamp(min=1e-30)
    assert float(((found_NO - expected_NO)[is_finite_N] / size_N1).abs().max()) < 1e-6
    in_bfloat16_NO = fp8_linear.multiply(*rounded, *weight(*size), torch.bfloat16).double()
    # which the interpreter cuts off where GPUs round
    torch.testing.assert_close(in_bfloat16_NO[is_finite_N], found_NO[is_finite_N], rtol=2**-7, atol=0)


@pytest.mark.parametrize("size", SIZES)
def test_a_line_alone_is_the_line_in_a_batch_bit_for_bit(size):
    _, num_inputs, kind, _ = size
    x_NI, group = lines(num_inputs, torch.float16), group_size(kind, num_inputs)

    def product(some_NI: torch.Tensor) -> torch.Tensor:
        out_NO = fp8_linear.multiply(*fp8_linear.quantize(some_NI, group), *weight(*size), torch.float16)
        return out_NO.view(torch.int16)  # so that what is no number equals itself

    together_NO = product(x_NI)
    for first, last in ((0, 1), (1, 6), (64, 70)):
        assert torch.equal(product(x_NI[first:last]), together_NO[first:last])


@pytest.mark.parametrize("kind", ["blocks", "rows"])
def test_a_whole_network_runs_on_the_kernels_and_a_row_does_not_depend_on_its_neighbor(kind, tmp_path):
    model = LanguageModel.load(saved_fp8("qwen3", tmp_path, kind, num_hidden_layers=1), "cpu", exact="on")
    texts = random_prompts((9, 5))
    plain_V = model.plain_logits(texts[0])
    model.speed_up()
    assert model.fused is not None
    assert model.fused.is_on_gpu

    def logits(rows: list[list[int]]) -> torch.Tensor:
        model.allocate(len(rows), 20)
        model.prefill(range(len(rows)), [row[:-1] for row in rows])
        newest_B1 = torch.tensor([row[-1:] for row in rows])
        return model.forward([len(row) - 1 for row in rows], newest_B1, torch.zeros_like(newest_B1))[:, 0].clone()

    alone_V = logits(texts[:1])[0]
    assert torch.equal(logits(texts[::-1])[1], alone_V)
    assert relative_deviation([alone_V], [plain_V]) < FP8_TOLERANCE
