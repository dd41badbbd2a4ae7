"""The FP8 kernels as they would be launched and compiled for GPUs, none of which is needed here."""

import pytest
import torch

from benchmarks.roofline.multiprocessor import MULTIPROCESSORS
from decoding.gpu import fp8_linear
from decoding.gpu.available import is_interpreted
from decoding.gpu.kernels import fp8_linear as kernels
from tests.decoding.gpu.compiled import CAPABILITIES, Launch, recorded
from tests.decoding.gpu.operations import Operations

pytestmark = pytest.mark.skipif(is_interpreted(), reason="a kernel is compiled or interpreted")

# outputs, inputs, kind of scales, bias
SIZES = {
    "queries, keys and values of Qwen3-8B": (6144, 4096, "blocks", False),
    "MLP of Qwen3-32B": (25600, 5120, "rows", False),
    "a projection with half a block": (576, 2048, "blocks", False),
    "queries, keys and values of Qwen2.5-0.5B": (1152, 896, "rows", True),
}
_ONE_WARP = "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3"
INSTRUCTIONS = {89: _ONE_WARP, 90: "wgmma.mma_async", 100: "tcgen05.mma", 120: _ONE_WARP}


def _launched(num_outputs: int, num_inputs: int, kind: str, has_bias: bool, num_lines: int = 65) -> list[Launch]:
    """The launches of a layer, and the operations beside them must be none."""
    rows, group = (1, num_inputs) if kind == "rows" else (128, 128)
    x_NI = torch.empty(num_lines, num_inputs, dtype=torch.bfloat16)
    weight_OI = torch.empty(num_outputs, num_inputs, dtype=torch.float8_e4m3fn)
    scales_SG = torch.empty(-(-num_outputs // rows), -(-num_inputs // group))
    bias_O = torch.empty(num_outputs, dtype=torch.bfloat16) if has_bias else None
    with recorded(kernels) as launches, Operations() as operations:
        lines = fp8_linear.quantize(x_NI, group)
        fp8_linear.multiply(*lines, weight_OI, scales_SG, rows, group, bias_O, torch.bfloat16)
    assert not operations.launches
    assert not operations.waits
    return launches


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_layer_is_two_launches_with_one_tile_for_all_numbers_of_lines(size):
    few, many = (_launched(*size, num_lines=num_lines) for num_lines in (1, 1000))
    assert [launch.kernel.fn.__name__ for launch in many] == ["quantize", "multiply"]
    for one, other in zip(few, many, strict=True):
        assert one.options == other.options
        for parameter in one.kernel.params:
            if parameter.is_constexpr:
                assert one.arguments[parameter.name] == other.arguments[parameter.name]
    assert [parameter.name for parameter in many[1].kernel.params if parameter.do_not_specialize] == ["num_lines"]


@pytest.mark.parametrize("capability", [pytest.param(89, marks=pytest.mark.slow), *CAPABILITIES[1:]])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_the_kernels_compile_for_every_gpu_with_fp8_without_spills(size, capability):
    quantize, multiply = (launch.compiled(capability) for launch in _launched(*size))
    for found in (quantize, multiply):
        assert found.num_spilled_bytes == 0
        assert found.num_shared_bytes <= MULTIPROCESSORS[capability].shared_bytes_of_a_program
    assert "cvt.rn.satfinite.e4m3x2" in quantize.ptx
    assert INSTRUCTIONS[capability] in multiply.ptx
    assert "e4m3" in multiply.ptx or "f8f6f4" in multiply.ptx  # in Blackwell's words
