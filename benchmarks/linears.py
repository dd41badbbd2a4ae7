"""Times the linear layers of one decoder network alone: torch's own, oneDNN's packed ones, and our kernel's.

`python -m benchmarks.linears --dtype bfloat16` (nothing else should run on the machine). In float32 the weights are
also quantized to 4 and 8 bits as GGUF files have them (`--codes Q4_1 Q8_0`), and multiplied as they are.

Prints milliseconds of all layers, the bandwidth at which the weights are read, and the arithmetic done.
"""

import argparse
import tempfile
from collections.abc import Callable
from functools import partial

import gguf
import torch
from torch.nn import functional as F

from benchmarks.harness import seconds_of
from decoding.codes.gguf_tensors import CodedTensor
from decoding.codes.weight import CodedWeight
from decoding.fused.coded_linear import CodedLinear
from decoding.fused.kernels import linear_kind
from decoding.fused.linear import KernelLinear, kernel_function
from decoding.fused.packed_linear import PackedLinear, can_pack

_SHAPES = ((2048, 1024), (1024, 1024), (2816, 1024), (2816, 1024), (1024, 2816))  # outputs, inputs: pair `medium`
_NUM_LAYERS = 22
_LINES = (1, 2, 4, 8, 12, 16, 24, 32, 40, 80, 160, 512)
_REPEATS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--codes", nargs="*", choices=("Q4_0", "Q4_1", "Q8_0"), default=[], help="with float32")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    torch.manual_seed(0)
    weights = [(torch.randn(shape) / shape[1] ** 0.5).to(dtype) for _ in range(_NUM_LAYERS) for shape in _SHAPES]
    num_bytes = sum(weight.numel() * weight.element_size() for weight in weights)
    kinds: dict[str, list[Callable[[torch.Tensor], torch.Tensor]]] = {
        "torch": [partial(F.linear, weight=weight) for weight in weights],
    }
    if can_pack(weights[0]):
        kinds["oneDNN, packed"] = [PackedLinear(weight, None) for weight in weights]
    function = kernel_function(weights[0])
    if function is not None:
        kinds[f"our kernel, {linear_kind(dtype)}"] = [KernelLinear(weight, None, function) for weight in weights]
        for name in options.codes if dtype is torch.float32 else ():
            kinds[name] = [CodedLinear(_quantized(weight, name), None, function) for weight in weights]
    print(f"{num_bytes / 1e6:.0f} MB of {dtype} weights, {torch.get_num_threads()} threads, least of {_REPEATS}")
    for num_lines in _LINES:
        inputs = {size: torch.randn(num_lines, size).to(dtype) for size in {shape[1] for shape in _SHAPES}}
        least = dict.fromkeys(kinds, float("inf"))
        for _ in range(_REPEATS):
            for kind, layers in kinds.items():
                least[kind] = min(least[kind], seconds_of(partial(_run, layers, inputs)))
        flops = sum(2 * num_lines * weight.numel() for weight in weights)
        columns = (
            f"{k} {s * 1e3:6.1f} ms {num_bytes / s / 1e9:5.1f} GB/s {flops / s / 1e9:4.0f} GFLOP/s"
            for k, s in least.items()
        )
        print(f"{num_lines:4} lines: " + " | ".join(columns), flush=True)


def _quantized(weight_OI: torch.Tensor, name: str) -> CodedWeight:
    """Return the weight as a GGUF file would have it."""
    kind = gguf.GGMLQuantizationType[name]
    with tempfile.NamedTemporaryFile() as file:
        lines = gguf.quantize(weight_OI.numpy(), kind)
        file.write(lines.tobytes())
        file.flush()
        return CodedTensor(file.name, name, 0, *lines.shape).read()


@torch.inference_mode()
def _run(layers: list[Callable[[torch.Tensor], torch.Tensor]], inputs: dict[int, torch.Tensor]) -> None:
    for index, layer in enumerate(layers):
        layer(inputs[_SHAPES[index % len(_SHAPES)][1]])


if __name__ == "__main__":
    main()
