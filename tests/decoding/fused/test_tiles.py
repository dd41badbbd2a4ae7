"""Products in bfloat16 by tiles are those of Intel's manual, bit for bit, and the lines of a batch do not meet.

The tiles are written out in C, so that these tests run wherever there is AVX2. Where the processor has tiles of its
own, they run with these, too. Shapes: N lines, I inputs, O outputs.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from decoding.cpu import library
from decoding.fused import kernels
from decoding.fused.linear import KernelLinear, PackedEmbedding, kernel_function
from tests.decoding.fused import tdpbf16ps

SHAPES = [(1536, 576), (49152, 576), (576, 1536), (33, 80), (50, 38), (7, 4), (32, 32), (96, 1026)]  # outputs, inputs
BATCHES = (*range(2, 42), 64, 100, 191, 192, 193, 200, 201, 230)
LEAST = 2.0**-126


@pytest.fixture(autouse=True, params=["emulated", "on"])
def _tiles(request, monkeypatch):
    monkeypatch.setenv("DRAY_KERNELS_TILES", request.param)
    if kernels.load_linear(torch.bfloat16) is None:
        pytest.skip("no C++ compiler here, or no AVX2")
    if request.param == "emulated":
        assert kernels.linear_kind(torch.bfloat16) == "amx-bf16-emulated", "tiles and vectors add alike"
    elif kernels.linear_kind(torch.bfloat16) != "amx-bf16":
        pytest.skip("no processor with AMX")


def layer_of(weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> KernelLinear:
    function = kernel_function(weight_OI)
    assert function is not None
    return KernelLinear(weight_OI, bias_O, function)


def cancelling(num_lines: int, shape: tuple[int, int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Lines and a weight in which each product comes with its negative, so that sums are nothing but what was rounded.

    Such a sum has few bits, and another order leaves another one: rounding to bfloat16 hides no difference.
    """
    torch.manual_seed(seed)
    num_outputs, num_inputs = shape
    sizes = 8.0 ** torch.randn(num_inputs // 2)  # products of one size would be added without rounding
    x, weight = sizes * torch.randn(num_lines, num_inputs // 2), sizes * torch.randn(num_outputs, num_inputs // 2)
    order = torch.randperm(num_inputs)
    return torch.cat([x, x], 1)[:, order].bfloat16(), torch.cat([weight, -weight], 1)[:, order].bfloat16()


def by_the_manual(x_NI: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(tdpbf16ps.products(x_NI.float().numpy(), weight_OI.float().numpy()))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_the_manual(shape):
    x_NI, weight_OI = cancelling(41, shape)
    layer = layer_of(weight_OI)
    some = torch.arange(shape[0])[-300:]  # outputs are computed apart, and the last ones are those of a part of a block
    expected_NO = by_the_manual(x_NI, weight_OI[some])
    assert expected_NO.count_nonzero() > expected_NO.numel() / 2 or shape[1] < 32
    for num_lines in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 32, 33, 41):
        assert torch.equal(layer(x_NI[:num_lines])[:, some], expected_NO[:num_lines].bfloat16())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lines_of_a_weight_are_read_from_the_layout_for_tiles(shape):
    """A tied embedding reads them: a block has 32 outputs, and zeros behind the last input, to whole steps of 32."""
    weight_OI = torch.randn(shape).bfloat16()
    layer = layer_of(weight_OI)
    index = torch.cat([torch.randint(shape[0], (100,)), torch.arange(shape[0])[-33:]])
    assert torch.equal(PackedEmbedding(layer)(index), weight_OI[index])
    with pytest.raises(AssertionError, match="no such line"):
        layer.lines(torch.tensor([shape[0]]))


@pytest.mark.parametrize("exponents", [(-70, -56), (-126, -119), (-133, -126)], ids=["products", "least", "inputs"])
def test_denormal_numbers_are_zero_as_the_manual_says(exponents):
    """Products and sums that are, the least inputs with weights below one, and inputs that are denormal."""
    generator = torch.Generator().manual_seed(1)
    signs_NI, signs_OI = (1 - 2.0 * torch.randint(2, (num, 70), generator=generator) for num in (20, 40))
    powers_NI = torch.randint(*exponents, (20, 70), generator=generator)
    powers_OI = torch.randint(-70, -56, (40, 70), generator=generator) if exponents[0] == -70 else torch.zeros(40, 70)
    x_NI = (signs_NI * 2.0**powers_NI * (1 + torch.rand(20, 70, generator=generator))).bfloat16()
    weight_OI = (signs_OI * 2.0**powers_OI * (0.2 + torch.rand(40, 70, generator=generator))).bfloat16()
    expected_NO = by_the_manual(x_NI, weight_OI)
    plain_NO = x_NI.double() @ weight_OI.double().T
    assert not torch.equal(expected_NO.bfloat16(), plain_NO.bfloat16()), "something is flushed"
    layer = layer_of(weight_OI)
    assert torch.equal(layer(x_NI), expected_NO.bfloat16())
    assert torch.equal(torch.cat([layer(line[None]) for line in x_NI]), expected_NO.bfloat16())


def test_a_sum_that_rounding_lifts_to_the_least_normal_number_stays():
    """2^-126 less a bit: what is denormal is decided after rounding to 24 bits."""
    bits = torch.tensor([2.0**-26, 2.0**-25, 1.5 * 2.0**-25, 2.0**-24]).bfloat16()  # of 2^-126
    x_NI, weight_OI = torch.zeros(9, 4).bfloat16(), torch.zeros(4, 4).bfloat16()
    x_NI[:, 0], x_NI[:, 2] = 2.0**-63, 2.0**-63
    weight_OI[:, 0], weight_OI[:, 2] = 2.0**-63, -(2.0**-63) * bits
    expected_O = torch.tensor([LEAST, LEAST, 0.0, 0.0])
    assert torch.equal(by_the_manual(x_NI, weight_OI)[0], expected_O)
    layer = layer_of(weight_OI)
    assert torch.equal(layer(x_NI).float(), expected_O.expand(9, -1))
    assert torch.equal(layer(x_NI[:1]).float(), expected_O[None])


@pytest.mark.parametrize("shape", [(33, 80), (64, 1026)], ids=str)
def test_a_line_has_the_same_bits_alone_and_beside_others(shape):
    x_NI, weight_OI = cancelling(230, shape)
    layer, gate_OI = layer_of(weight_OI, torch.randn(shape[0]).bfloat16()), (torch.randn(shape) / 9).bfloat16()
    gate = layer_of(gate_OI)
    y_NO = torch.randn(230, shape[0]).bfloat16()
    alone_NO = torch.cat([layer.plus(x_NI[n : n + 1], y_NO[n : n + 1]) for n in range(230)])
    gated_NO = torch.cat([layer.gated(x_NI[n : n + 1], gate) for n in range(230)])
    sums_NO = by_the_manual(x_NI, weight_OI) + layer.bias
    assert torch.equal(alone_NO, (sums_NO + y_NO).bfloat16())
    opened_NO = torch.nn.functional.silu(by_the_manual(x_NI, gate_OI)) * sums_NO
    torch.testing.assert_close(gated_NO.float(), opened_NO, rtol=1e-2, atol=1e-6)
    for num_lines in BATCHES:
        for lines in (slice(num_lines), slice(230 - num_lines, 230)):
            assert torch.equal(layer.plus(x_NI[lines], y_NO[lines]), alone_NO[lines])
            assert torch.equal(layer.gated(x_NI[lines], gate), gated_NO[lines])


def test_what_an_earlier_batch_left_is_not_read():
    x_NI, weight_OI = cancelling(40, (40, 38))
    layer = layer_of(weight_OI)
    expected_NO = layer(x_NI)
    for num_lines in (1, 8, 9, 31, 40):
        layer_of(torch.ones(40, 64).bfloat16())(torch.full((230, 64), float("nan")).bfloat16())
        assert torch.equal(layer(x_NI[:num_lines]), expected_NO[:num_lines])


def test_halves_of_a_weight_and_replaced_weights_are_multiplied_in_the_same_order():
    x_NI, weight_OI = cancelling(20, (128, 70))
    layer = layer_of(weight_OI)
    halves = layer.halves()
    assert torch.equal(torch.cat([half(x_NI) for half in halves], 1), layer(x_NI))
    assert torch.equal(torch.cat([half.weight for half in halves]), weight_OI)
    _, other_OI = cancelling(20, (128, 70), seed=1)
    layer.replace(other_OI, None)
    assert torch.equal(layer.weight, other_OI)
    for lines in (slice(3), slice(20)):
        assert torch.equal(layer(x_NI[lines]), by_the_manual(x_NI[lines], other_OI).bfloat16())
        assert torch.equal(torch.cat([half(x_NI[lines]) for half in halves], 1), layer(x_NI[lines]))


def test_threads_have_tiles_of_their_own_and_leave_the_callers_denormals_alone():
    x_NI, weight_OI = cancelling(40, (300, 70))
    layer = layer_of(weight_OI)
    torch.set_num_threads(3)
    try:
        for lines in (slice(5), slice(40)):
            assert torch.equal(layer(x_NI[lines]), by_the_manual(x_NI[lines], weight_OI).bfloat16())
            assert np.float32(1e-40) * np.float32(0.5) != 0
            assert torch.full((100_000,), 1e-40).mul(0.5).count_nonzero() == 100_000  # on all threads
    finally:
        torch.set_num_threads(1)


def test_only_bfloat16_has_tiles_and_a_word_that_is_none_is_refused(monkeypatch):
    assert kernels.tile_form(torch.float32) == 0
    monkeypatch.setenv("DRAY_KERNELS_TILES", "off")
    assert "amx" not in kernels.linear_kind(torch.bfloat16)
    monkeypatch.setenv("DRAY_KERNELS_TILES", "emulate")
    with pytest.raises(ValueError, match="DRAY_KERNELS_TILES is one of on, emulated, off, and not 'emulate'"):
        kernels.linear_kind(torch.bfloat16)


@pytest.mark.parametrize(("found", "why"), [(-1, "add in another order than its manual says"), (-2, "does not let")])
def test_tiles_that_add_in_another_order_or_are_refused_are_not_used(monkeypatch, caplog, found, why):
    monkeypatch.setattr(kernels, "function", lambda *_: lambda form: found)
    kernels._agreeing.cache_clear()
    try:
        assert kernels.tile_form(torch.bfloat16) == 0
    finally:
        kernels._agreeing.cache_clear()
    assert why in caplog.text


def test_the_code_for_a_processor_with_amx_compiles(tmp_path):
    compiler, target, made = os.environ.get("CXX") or "g++", "-march=sapphirerapids", tmp_path / "kernels.o"
    if subprocess.run([compiler, target, "-E", "-x", "c++", os.devnull], capture_output=True).returncode:
        pytest.skip("the compiler does not know processors with AMX")
    source = Path(library.__file__).parent / "kernels" / "cpu.cpp"
    subprocess.run([compiler, *library._FLAGS[1:], "-O1", "-c", target, str(source), "-o", str(made)], check=True)
    assert b"3Amx" in made.read_bytes()


def test_the_code_for_a_processor_with_amx_multiplies_as_vectors_do_where_its_instructions_are_written_out(tmp_path):
    """A processor without AMX hands the instructions to `amx_trap.c`, with their operands and addresses."""
    compiler, here = os.environ.get("CXX") or "g++", Path(__file__).parent
    target = ("-march=x86-64-v3", "-mamx-tile", "-mamx-bf16")
    if subprocess.run([compiler, *target, "-E", "-x", "c++", os.devnull], capture_output=True).returncode:
        pytest.skip("the compiler does not know AMX")
    (tmp_path / "products.cpp").write_text(
        '#include "linear.h"\nextern "C" int64_t found() { return has_tiles(kAmx); }\n'
    )
    kernels_folder = Path(library.__file__).parent / "kernels"
    for what in (
        [*library._FLAGS[1:], "-O1", *target, f"-I{kernels_folder}", "products.cpp", "-o", "products.so"],
        ["-x", "c", "-O1", "-mfma", "-shared", "-fPIC", str(here / "amx_trap.c"), "-o", "trap.so", "-ldl"],
    ):
        subprocess.run([compiler, *what], check=True, cwd=tmp_path)
    code = "import ctypes; print(ctypes.CDLL('./products.so').found())"
    preloaded = os.environ | {"LD_PRELOAD": str(tmp_path / "trap.so")}
    for env, expected in ((preloaded, "1\n"), (preloaded | {"ADDS_OTHERWISE": "1"}, "-1\n")):
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.stdout == expected, f"tiles that add as vectors do are found, and others ({done.returncode})"
