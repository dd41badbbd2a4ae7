"""Packed weights of safetensors files, as GPTQ, AWQ and compressed-tensors write them, read as they were published.

A weight is `scale * (code - zero point)` of the numbers in the file, in float32, rounded once. (The writers' own
readers round it once more, to the type of the scales.) A word of 32 bits holds codes of 4 or 8 bits, the first in the
lowest bits:

- "gptq" (`nn_modules/qlinear` of AutoGPTQ 0.7 and GPTQModel 7.7): `qweight` [W, O] packs inputs, `qzeros` [G, W] packs
  outputs, `scales` is [G, O], and `g_idx` [I] says of which group each input is. Zero points are stored minus one, but
  not in "gptq_v2". Kernels do not read those of symmetric weights, and there are checkpoints that say "gptq" and have
  them as they are (vLLM's pull request 38966).
- "awq" (`WQLinear_GEMM` of AutoAWQ 0.2): `qweight` [I, W] and `qzeros` [G, W] pack outputs, eight of them in the order
  0, 2, 4, 6, 1, 3, 5, 7; `scales` is [G, O].
- "pack-quantized" (compressed-tensors 0.20): `weight_packed` [O, W] packs inputs, `weight_zero_point` [W, G] packs
  outputs, both plus half the number of codes; `weight_scale` is [O, G], and `weight_g_idx` [I] is as above.

Shapes: O outputs, I inputs, G groups of inputs, W words.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from decoding.codes.weight import CodedWeight

Header = tuple[str, tuple[int, ...], Path]  # of a tensor: dtype in the words of safetensors, shape, and its file
_FLOATS, _WORDS, _INTEGERS = ("F16", "BF16", "F32"), ("I32",), ("I32", "I64")
_LARGEST_GROUP = 128  # in memory, where it divides a group
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # in a word, of eight outputs
# The parts of a weight, behind the name of its module: codes, scales, zero points, and the groups of inputs.
_PARTS = {
    "gptq": ("qweight", "scales", "qzeros", "g_idx"),
    "awq": ("qweight", "scales", "qzeros", "g_idx"),
    "pack-quantized": ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"),
}


@dataclass(frozen=True)
class PackedLayout:
    """How a checkpoint has its packed weights."""

    method: str  # of `_PARTS`
    num_bits: int  # 4 or 8
    group_size: int | None  # None: all inputs
    is_symmetric: bool  # the zero point is the middle of the codes
    is_ordered: bool = False  # act order: the inputs of a group need not be neighbours
    added: int = 0  # to a stored zero point

    def tensors(self, headers: Mapping[str, Header]) -> dict[str, "PackedTensor"]:
        """Return the packed weights among these tensors, by the name that each has when it is dequantized.

        Raises a ValueError, which begins with a verb, for parts that are missing or have other shapes or types.
        """
        ending = f".{_PARTS[self.method][0]}"
        modules = [name.removesuffix(ending) for name in headers if name.endswith(ending)]
        if twice := next((module for module in modules if f"{module}.weight" in headers), None):
            raise ValueError(f"has the weight of {twice!r} twice, packed and as it is")
        return {f"{module}.weight": self._tensor(module, headers) for module in modules}

    def _tensor(self, module: str, headers: Mapping[str, Header]) -> "PackedTensor":
        codes, scales, zeros, order = (f"{module}.{part}" for part in _PARTS[self.method])
        packed, a_word = headers[codes][1], 32 // self.num_bits
        if len(packed) != 2:
            raise ValueError(f"has {codes!r} of shape {list(packed)}; expected two dimensions")
        first, second = packed
        match self.method:
            case "gptq":
                outputs, inputs = second, first * a_word
            case "awq":
                outputs, inputs = second * a_word, first
            case _:
                outputs, inputs = first, second * a_word
        group = self.group_size or inputs
        if inputs % group or group % 8:
            raise ValueError(f"has {codes!r} of {inputs} inputs, which are no whole groups of {group}, or no eights")
        groups, words = inputs // group, -(-outputs // a_word)
        wanted: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {codes: (_WORDS, packed)}
        if self.method == "pack-quantized":
            wanted |= {scales: (_FLOATS, (outputs, groups)), f"{module}.weight_shape": (_INTEGERS, (2,))}
            wanted |= {} if self.is_symmetric else {zeros: (_WORDS, (words, groups))}
        else:
            wanted |= {scales: (_FLOATS, (groups, outputs)), zeros: (_WORDS, (groups, words))}
        if self.is_ordered or order in headers:
            wanted[order] = _INTEGERS, (inputs,)
        files = []
        for name, (dtypes, shape) in wanted.items():
            dtype, found, file = headers.get(name, ("nothing", (), Path()))
            if dtype not in dtypes or found != shape:
                raise ValueError(
                    f"has {dtype} of shape {list(found)} as {name!r}; expected {' or '.join(dtypes)} of shape "
                    f"{list(shape)}, as {codes!r} and config.json say"
                )
            files.append((name, str(file)))
        return PackedTensor(self, (outputs, inputs), tuple(files), headers[scales][0] == "F32")


@dataclass(frozen=True)
class PackedTensor:
    """A packed weight in the files of a checkpoint."""

    layout: PackedLayout
    shape: tuple[int, int]  # (O, I)
    files: tuple[tuple[str, str], ...]  # of its parts, by their whole names; the codes come first
    has_long_scales: bool  # of float32

    @property
    def stays_float32(self) -> bool:
        """Whether it cannot be multiplied in codes, as far as that is known unread."""
        is_wide = self.has_long_scales and self.layout.num_bits == 8 and not self.layout.is_symmetric
        return is_wide or self.layout.is_ordered

    @property
    def num_bytes_saved(self) -> int:
        """The bytes that its codes take less in memory than its float32 numbers, as far as that is known unread."""
        if self.stays_float32:
            return 0
        num_weights = self.shape[0] * self.shape[1]
        num_groups = num_weights // _in_memory(self.layout.group_size or self.shape[1])
        num_bits = 8 if self.has_long_scales else self.layout.num_bits
        has_minimums = self.has_long_scales or not self.layout.is_symmetric
        return num_weights * (32 - num_bits) // 8 - num_groups * (8 if has_minimums else 2)

    def read(self) -> CodedWeight:
        """Return the weight in codes; raise an OSError or ValueError if they are not there, or cannot say it."""
        if (found := self._numbers().coded()) is None:
            raise ValueError(f"{self.files[0][0]} has an order of inputs, or scales, with which it is not multiplied")
        return found

    def dequantized(self) -> torch.Tensor:
        """Return the weight [O, I] in float32; raise an OSError or ValueError if it cannot be read."""
        return torch.from_numpy(self._numbers().dequantized())

    def _numbers(self) -> "_Numbers":
        num_bits, name = self.layout.num_bits, self.files[0][0]
        parts: Any = {}
        for file in {file for _, file in self.files}:
            read = read_tensors((name for name, its_file in self.files if its_file == file), file)
            parts |= {part.rpartition(".")[2]: _numbers_of(tensor) for part, tensor in read.items()}
        packed, scales, zeros, order = map(parts.get, _PARTS[self.layout.method])
        codes_OI: Any
        zeros_OG: Any
        match self.layout.method:
            case "gptq":
                codes_OI, scales_OG, zeros_OG = _unpacked(packed.T, num_bits), scales.T, _unpacked(zeros, num_bits).T
            case "awq":
                codes_OI, zeros_OG = (_in_order(_unpacked(words, num_bits)).T for words in (packed, zeros))
                scales_OG = scales.T
            case _:
                codes_OI, scales_OG = _unpacked(packed, num_bits), scales
                zeros_OG = None if zeros is None else _unpacked(zeros.T, num_bits).T
                if parts["weight_shape"].tolist() != list(self.shape):
                    raise ValueError(f"{name} is of {self.shape} weights, and its weight_shape says another number")
        middle = 1 << num_bits - 1
        if zeros_OG is not None:
            zeros_OG = zeros_OG[: self.shape[0]].astype(np.int16) + np.int16(self.layout.added)
        if self.layout.is_symmetric:
            if zeros_OG is not None and not any((zeros_OG - less == middle).all() for less in (0, self.layout.added)):
                raise ValueError(f"{name} is symmetric by config.json, and its zero points are not {middle}")
            zeros_OG = np.full(scales_OG.shape, middle, np.int16)
        if (zeros_OG == 2 * middle).any():  # 0 minus one: 0 to some readers, and a carry to others
            raise ValueError(f"{name} has zero points of 0 stored minus one, which readers take differently")
        group_I, neighbours_I = order, np.arange(self.shape[1]) // (self.shape[1] // scales_OG.shape[1])
        if group_I is None or np.array_equal(group_I, neighbours_I):
            group_I = None
        elif not self.layout.is_ordered or group_I.min() < 0 or group_I.max() >= scales_OG.shape[1]:
            raise ValueError(f"{name} has an order of inputs that config.json does not say")
        contiguous = np.ascontiguousarray(codes_OI), np.ascontiguousarray(scales_OG)
        return _Numbers(num_bits, *contiguous, zeros_OG, group_I)


@dataclass(frozen=True)
class _Numbers:
    """The numbers of a weight, in the order of the network."""

    num_bits: int
    codes_OI: NDArray[np.uint8]
    scales_OG: NDArray[np.float32]
    zeros_OG: NDArray[np.int16]
    group_I: NDArray[np.integer] | None  # None: each group has neighbours

    def coded(self) -> CodedWeight | None:
        """Return the weight as the kernel multiplies it, each number rounded once; None if that cannot be."""
        if self.group_I is not None:
            return None
        size = self.codes_OI.shape[1] // self.scales_OG.shape[1]
        times = size // _in_memory(size)
        scales_OG, zeros_OG = self.scales_OG.repeat(times, 1), self.zeros_OG.repeat(times, 1)
        middle = 1 << self.num_bits - 1
        with np.errstate(over="ignore"):
            halves_OG = scales_OG.astype(np.float16)
        if (zeros_OG == middle).all() and np.array_equal(halves_OG, scales_OG):
            return CodedWeight(_signed(self.codes_OI, middle), halves_OG, None, self.num_bits)
        first = 0 if self.num_bits == 4 else middle  # so that a code is an int8
        is_short = not (scales_OG.view(np.uint32) & 255).any()  # of 16 bits: a product with a code is exact
        if is_short:
            minimums_OG = -scales_OG * (zeros_OG - first).astype(np.float32)
            return CodedWeight(_signed(self.codes_OI, first), scales_OG, minimums_OG, self.num_bits)
        if self.num_bits == 8 and (zeros_OG != middle).any():
            return None
        zeros_OI = zeros_OG.repeat(self.codes_OI.shape[1] // zeros_OG.shape[1], 1)
        return CodedWeight(_signed(self.codes_OI, zeros_OI), scales_OG, np.full_like(scales_OG, -0.0), 8)

    def dequantized(self) -> NDArray[np.float32]:
        """Return the weight [O, I]."""
        if (coded := self.coded()) is not None:
            return coded.dequantized()
        num_groups, num_inputs = self.scales_OG.shape[1], self.codes_OI.shape[1]
        group_I = np.arange(num_inputs) // (num_inputs // num_groups) if self.group_I is None else self.group_I
        steps_OI = self.codes_OI.astype(np.float32) - self.zeros_OG.astype(np.float32)[:, group_I]
        return self.scales_OG[:, group_I] * steps_OI


def _in_memory(group_size: int) -> int:
    """Return the size in memory of groups: the kernel fetches one beforehand, so a large one is cut where that can be.

    Its pieces have the same scale.
    """
    return group_size if group_size % _LARGEST_GROUP else _LARGEST_GROUP


def _signed(codes_OI: NDArray[np.uint8], zeros: Any) -> NDArray[np.int8]:
    """Return codes less zero points; each difference must be one of an int8."""
    return (codes_OI - np.asarray(zeros, np.uint8)).view(np.int8)


def read_tensors(names: Iterable[str], file: str) -> dict[str, torch.Tensor]:
    """Return tensors of a file in memory of their own; raise an OSError or ValueError if one is not there."""
    try:
        with safe_open(file, "pt", backend="pread") as tensors:
            return {name: tensors.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(f"cannot read from {file!r}: {error}") from error


def _numbers_of(tensor: torch.Tensor) -> Any:
    """Return the integers of a tensor, or its numbers in float32."""
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _unpacked(words_XW: Any, num_bits: int) -> NDArray[np.uint8]:
    """Return the codes in the last dimension of words of 32 bits."""
    bytes_XB: NDArray[np.uint8] = np.ascontiguousarray(words_XW).view(np.uint8)
    return bytes_XB if num_bits == 8 else np.stack((bytes_XB & 15, bytes_XB >> 4), -1).reshape(len(bytes_XB), -1)


def _in_order(codes_XO: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return codes of AWQ's words in the order of outputs."""
    return codes_XO.reshape(len(codes_XO), -1, 8)[:, :, _AWQ_PLACES].reshape(len(codes_XO), -1)
