"""FP8 arithmetic in torch is exact: what it rounds is what is to be rounded, and sums depend on no order."""

import pytest
import torch

from decoding.fp8 import exact
from tests.decoding.fp8.checkpoints import quantized, spread

NUMBERS = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
FINITE = NUMBERS[NUMBERS.isfinite()].sort().values


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def lines(num_lines: int, num_inputs: int) -> torch.Tensor:
    """Lines of very different sizes."""
    return (normal(num_lines, num_inputs) * normal(num_lines, 1).mul(4).exp()).bfloat16()


@pytest.mark.parametrize("group_size", [128, 320])
def test_an_activation_becomes_the_nearest_number_of_fp8_and_the_largest_of_a_group_448(group_size):
    x_NI = lines(20, 320)
    quantized_NI, scales_NG = exact.quantize(x_NI, group_size)
    assert scales_NG.shape == (20, -(-320 // group_size))
    scale_NI = scales_NG.repeat_interleave(group_size, 1)[:, :320]
    scaled_NI = (x_NI.float() / scale_NI).double()
    distances_NIF = scaled_NI.unsqueeze(-1) - FINITE.double()
    assert torch.equal((scaled_NI - quantized_NI.double()).abs(), distances_NIF.abs().amin(-1))
    largest_NG = torch.stack([part.abs().amax(-1) for part in quantized_NI.float().split(group_size, 1)], 1)
    assert torch.equal(largest_NG, torch.full_like(largest_NG, exact.LARGEST))


def test_ties_go_to_the_even_number():
    x_NI = torch.tensor([[448.0, 17.0, 19.0, 2**-10, 3 * 2**-10, -17.0]], dtype=torch.bfloat16)
    assert exact.quantize(x_NI, 6)[0].float().tolist() == [[448, 16, 20, 0, 2**-8, -16]]


def test_a_group_of_zeros_stays_zeros():
    quantized_NI, scales_NG = exact.quantize(torch.zeros(2, 256, dtype=torch.bfloat16), 128)
    assert (quantized_NI.float() == 0).all()
    assert (scales_NG > 0).all()


def test_numbers_too_small_for_a_scale_do_not_overflow():
    x_NI = torch.full((1, 128), 1e-40, dtype=torch.bfloat16)
    assert exact.quantize(x_NI, 128)[0].float().abs().max() <= exact.LARGEST


@pytest.mark.parametrize("kind", ["blocks", "rows"])
def test_a_product_is_that_of_dequantized_weights_and_dequantized_activations(kind):
    x_NI, (weight_OI, scales_SG) = lines(30, 320), quantized(normal(200, 320), kind)
    rows, group = (1, 320) if kind == "rows" else (128, 128)
    quantized_NI, x_scales_NG = exact.quantize(x_NI, group)
    bias_O = normal(200)
    found_NO = exact.multiply(
        quantized_NI, x_scales_NG, weight_OI, scales_SG.float(), rows, group, bias_O, torch.float64
    )
    dense_OI = weight_OI.double() * spread(scales_SG, weight_OI.shape, kind).double()
    dense_NI = quantized_NI.double() * x_scales_NG.double().repeat_interleave(group, 1)[:, :320]
    expected_NO = dense_NI @ dense_OI.t() + bias_O
    size_NO = dense_NI.abs() @ dense_OI.abs().t() + bias_O.abs()  # terms may cancel
    assert float(((found_NO - expected_NO).abs() / size_NO).max()) < 1e-14


def test_sums_are_exact_whatever_their_order():
    """The largest and the smallest products side by side: float32 would lose the small ones, or not, by the order."""
    generator = torch.Generator().manual_seed(0)
    x_NI = FINITE[torch.randint(len(FINITE), (3, 128), generator=generator)].to(torch.float8_e4m3fn)
    weight_OI = FINITE[torch.randint(len(FINITE), (256, 128), generator=generator)].to(torch.float8_e4m3fn)
    ones = torch.ones(3, 1), torch.ones(2, 1)
    order = torch.randperm(128, generator=generator)

    def sums(order_I: torch.Tensor) -> torch.Tensor:
        return exact.multiply(x_NI[:, order_I], ones[0], weight_OI[:, order_I], ones[1], 128, 128, None, torch.float64)

    steps = 2**18  # of the smallest product
    integers = (x_NI.double() * 2**9).long() @ (weight_OI.double() * 2**9).long().t()
    assert torch.equal(sums(torch.arange(128)) * steps, integers.double())
    assert torch.equal(sums(order), sums(torch.arange(128)))


@pytest.mark.parametrize("kind", ["blocks", "rows"])
def test_a_line_alone_is_the_line_in_a_batch_bit_for_bit(kind):
    x_NI, (weight_OI, scales_SG) = lines(70, 384), quantized(normal(256, 384), kind)
    rows, group = (1, 384) if kind == "rows" else (128, 128)

    def product(some_NI: torch.Tensor) -> torch.Tensor:
        arguments = (weight_OI, scales_SG.float(), rows, group, None, torch.bfloat16)
        return exact.multiply(*exact.quantize(some_NI, group), *arguments)

    together_NO = product(x_NI)
    for first, last in ((0, 1), (1, 6), (6, 70)):
        assert torch.equal(product(x_NI[first:last]), together_NO[first:last])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["blocks", "rows"])
def test_what_is_not_finite_in_one_line_stays_there_and_is_seen(kind, bad):
    x_NI, (weight_OI, scales_SG) = lines(3, 256), quantized(normal(128, 256), kind)
    x_NI[1, 5] = bad
    rows, group = (1, 256) if kind == "rows" else (128, 128)
    arguments = (weight_OI, scales_SG.float(), rows, group, None, torch.bfloat16)
    out_NO = exact.multiply(*exact.quantize(x_NI, group), *arguments)
    assert out_NO[[0, 2]].isfinite().all()
    assert not out_NO[1].isfinite().any()
