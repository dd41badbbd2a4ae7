"""Random tensors of each type of GGUF that is read, as bytes, and the numbers that the package gguf makes of them."""

from pathlib import Path

import gguf
import numpy as np
import torch

from decoding.codes.gguf_tensors import _TYPES, CodedTensor

TYPES = tuple(_TYPES)
_HALVES = {"Q6_K": (208,)} | dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))  # bytes of scales and minimums


def random_tensor(
    folder: Path, name: str, num_lines: int, num_inputs: int, seed: int = 0
) -> tuple[CodedTensor, torch.Tensor]:
    """Return a tensor with any codes and scales of either sign, in a file of its own, and its float32 numbers."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (num_lines * num_inputs // block, size), dtype=np.uint8)
    for place in _HALVES.get(name, (0,)):
        halves = (0.01 * rng.standard_normal(len(blocks))).astype(np.float16)
        blocks[:, place : place + 2] = halves[:, None].view(np.uint8)
    lines = blocks.reshape(num_lines, -1)
    file = folder / f"{name}-{num_lines}-{num_inputs}-{seed}.bin"
    file.write_bytes(b"before" + lines.tobytes())
    numbers = torch.from_numpy(gguf.dequantize(lines, gguf.GGMLQuantizationType[name]))
    return CodedTensor(str(file), name, 6, *lines.shape), numbers


def same_bits(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.shape == expected.shape and torch.equal(found.view(torch.int32), expected.view(torch.int32))
