"""The tensors of a GGUF file as packed weights, read from the mapped file without dequantizing it.

A model folder that was made of a file keeps the file (a link to it, where that can be), and for each weight that was
found to be, bit for bit, what the codes of a tensor stand for, where these are.

The layout of a block of each type is that of the package gguf (`gguf/quants.py`), which the tests compare with. In K
types a block of 256 inputs has a scale of its own, and that times the scale of a group, of 6 or 8 bits, is exact in
float32; so a group has one scale there too.

Shapes: O outputs, B blocks of all lines, G groups of a line.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.codes.weight import CodedWeight

if TYPE_CHECKING:
    import gguf

Bytes = NDArray[np.uint8]
_Parts = tuple[NDArray[np.int8], NDArray[np.floating], NDArray[np.floating] | None]  # codes, scales, minimums of blocks


def _halves(bytes_B2: Bytes) -> NDArray[np.float16]:
    return np.ascontiguousarray(bytes_B2).view(np.float16)


def _nibbles(bytes_BX: Bytes) -> Bytes:
    """Return the low halves of bytes, and behind them the high ones."""
    return np.concatenate((bytes_BX & 15, bytes_BX >> 4), axis=-1)


def _fifth_bits(bytes_B4: Bytes) -> Bytes:
    return np.unpackbits(np.ascontiguousarray(bytes_B4), axis=-1, bitorder="little") << np.uint8(4)


def _q4_0(blocks: Bytes) -> _Parts:
    return _nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8), _halves(blocks[:, :2]), None


def _q4_1(blocks: Bytes) -> _Parts:
    return _nibbles(blocks[:, 4:]).astype(np.int8), _halves(blocks[:, :2]), _halves(blocks[:, 2:4])


def _q5_0(blocks: Bytes) -> _Parts:
    codes = (_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])).astype(np.int8) - np.int8(16)
    return codes, _halves(blocks[:, :2]), None


def _q5_1(blocks: Bytes) -> _Parts:
    codes = (_nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])).astype(np.int8)
    return codes, _halves(blocks[:, :2]).astype(np.float32), _halves(blocks[:, 2:4]).astype(np.float32)


def _q8_0(blocks: Bytes) -> _Parts:
    return blocks[:, 2:].view(np.int8), _halves(blocks[:, :2]), None


def _six_bits(bytes_B12: Bytes) -> tuple[Bytes, Bytes]:
    """Return the 8 scales and the 8 minimums that 12 bytes of a K block hold."""
    low, middle, high = bytes_B12[:, :4], bytes_B12[:, 4:8], bytes_B12[:, 8:]
    scales = np.concatenate((low & 63, (high & 15) | (low >> 2 & 48)), axis=-1)
    return scales, np.concatenate((middle & 63, (high >> 4) | (middle >> 2 & 48)), axis=-1)


def _of_groups(blocks: Bytes) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    scales, minimums = _six_bits(blocks[:, 4:16])
    wide = _halves(blocks[:, :2]).astype(np.float32), _halves(blocks[:, 2:4]).astype(np.float32)
    return wide[0] * scales.astype(np.float32), -(wide[1] * minimums.astype(np.float32))


def _q4_k(blocks: Bytes) -> _Parts:
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 256)
    return codes.astype(np.int8), *_of_groups(blocks)


def _q5_k(blocks: Bytes) -> _Parts:
    high = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 256) | high.reshape(-1, 256) << np.uint8(4)
    return codes.astype(np.int8), *_of_groups(blocks)


def _q6_k(blocks: Bytes) -> _Parts:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3).reshape(-1, 256)
    codes = (low | high << np.uint8(4)).astype(np.int8) - np.int8(32)
    scales = _halves(blocks[:, 208:]).astype(np.float32) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return codes, scales, np.full_like(scales, -0.0)


# Of each type: the bytes of a block, those in which it is kept in memory, the bits of a code there, and its reader.
_TYPES: dict[str, tuple[int, int, int, Callable[[Bytes], _Parts]]] = {
    "Q4_0": (18, 18, 4, _q4_0),
    "Q4_1": (20, 20, 4, _q4_1),
    "Q5_0": (22, 34, 8, _q5_0),
    "Q5_1": (24, 40, 8, _q5_1),
    "Q8_0": (34, 34, 8, _q8_0),
    "Q4_K": (144, 192, 4, _q4_k),
    "Q5_K": (176, 320, 8, _q5_k),
    "Q6_K": (210, 384, 8, _q6_k),
}
_KEPT = "codes.json"  # in a model folder that was made of a file: where the codes of its weights are
_FILE = "codes.gguf"  # beside it
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CodedTensor:
    """A tensor in a file, of which the codes can be read; plain data, so that it can be kept as JSON."""

    file: str
    type_name: str
    offset: int  # bytes
    num_lines: int
    bytes_a_line: int
    num_halved: int = 0  # heads whose rotary halves are interleaved in the file, as in those of Llama; 0: none

    @property
    def _num_blocks(self) -> int:  # of a line
        return self.bytes_a_line // _TYPES[self.type_name][0]

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs (or lines of an embedding) and inputs."""
        return self.num_lines, self._num_blocks * (256 if self.type_name.endswith("_K") else 32)

    @property
    def num_bytes_saved(self) -> int:
        """The bytes that its codes take less in memory than its float32 numbers."""
        return 4 * prod(self.shape) - self.num_lines * self._num_blocks * _TYPES[self.type_name][1]

    def read(self) -> CodedWeight:
        """Return the weight in the order of the network; raise an OSError or ValueError if the file is not there."""
        shape = (self.num_lines, self.bytes_a_line)
        size, _, num_bits, parts_of = _TYPES[self.type_name]
        mapped: Bytes = np.memmap(Path(self.file), np.uint8, "r", self.offset, shape)
        if self.num_halved:  # the order of `LlamaTensorProcessor` in transformers
            mapped = mapped.reshape(self.num_halved, -1, 2, self.bytes_a_line).swapaxes(1, 2).reshape(shape)
        codes, scales, minimums = parts_of(mapped.reshape(-1, size))
        minimums = None if minimums is None else minimums.reshape(self.num_lines, -1)
        return CodedWeight(codes.reshape(self.num_lines, -1), scales.reshape(self.num_lines, -1), minimums, num_bits)


def keep_codes(folder: Path, file: Path, reader: "gguf.GGUFReader", weights: Mapping[str, torch.Tensor]) -> None:
    """Keep in a model folder where the codes of its weights are, and the file that has them.

    A weight whose tensor has a type that is not read, or other numbers than these, is left out: it stays float32.
    """
    found = dict(_found(file, reader, weights))
    if not found:
        return
    try:
        # What is written into the file later is seen when the weights are packed.
        os.link(file.resolve(), folder / _FILE)  # the file, since a relative link to it (of the hub) leads nowhere here
    except OSError:
        shutil.copyfile(file, folder / _FILE)
    kept = {
        name: {key: value for key, value in asdict(tensor).items() if key != "file"} for name, tensor in found.items()
    }
    (folder / _KEPT).write_text(json.dumps(kept) + "\n")


def kept_codes(folder: str) -> dict[str, CodedTensor]:
    """Return the weights of a model folder whose codes it keeps, by name; none in a folder made of no GGUF file."""
    kept = Path(folder) / _KEPT
    if not kept.is_file():
        return {}
    file = str(kept.with_name(_FILE))
    return {name: CodedTensor(file, **tensor) for name, tensor in json.loads(kept.read_text()).items()}


def _found(
    file: Path, reader: "gguf.GGUFReader", weights: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, CodedTensor]]:
    """Yield the weights that are tensors of read types, by name: those that share memory are one weight."""
    import gguf  # here, because it is needed once for each file

    fields: dict[str, Any] = reader.fields
    architecture = fields["general.architecture"].contents()
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    counts = (fields[key].contents() for key in fields if key.startswith(f"{architecture}.attention.head_count"))
    heads = {int(num) for count in counts for num in np.ravel(count)} - {0}  # one number, or one a layer; Mamba has 0
    names = gguf.get_tensor_name_map(kinds[architecture], int(fields[f"{architecture}.block_count"].contents()))
    stored = {tensor.name: tensor for tensor in reader.tensors}
    by_memory: dict[int, CodedTensor] = {}
    for name, weight in weights.items():
        tensor: Any = stored.get(names.get_name(name, try_suffixes=(".weight",)) or "")
        if weight.data_ptr() not in by_memory and tensor is not None and tensor.tensor_type.name in _TYPES:
            shape = tensor.data.shape
            if len(shape) != 2:  # of experts side by side, say
                continue
            plain = CodedTensor(str(file), tensor.tensor_type.name, int(tensor.data_offset), *map(int, shape))
            orders = [
                plain,
                *(replace(plain, num_halved=num) for num in sorted(heads) if shape[0] % (2 * num) == 0),
            ]
            same = next((each for each in orders if _is(each, weight)), None)
            if same is None:
                _log.warning("%s of %s is not the tensor %s, and stays float32", name, file, tensor.name)
                continue
            by_memory[weight.data_ptr()] = same
    for name, weight in weights.items():
        if weight.data_ptr() in by_memory:
            yield name, by_memory[weight.data_ptr()]


def _is(tensor: CodedTensor, weight: torch.Tensor) -> bool:
    """Tell whether the codes of a tensor stand for a float32 weight, bit for bit."""
    dequantized = torch.from_numpy(tensor.read().dequantized())
    return dequantized.shape == weight.shape and torch.equal(dequantized.view(torch.int32), weight.view(torch.int32))
