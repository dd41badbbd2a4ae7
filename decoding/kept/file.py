"""KeptFile: weights as they are laid out for one processor, in one file that all engines of a machine map.

The tensors come first, then their description as JSON, then its digest, its size and a mark. The pages of a mapping are
those of all engines; what one writes there it has alone. A file is used only if it has the key that is asked for, and
if the sums of its bytes are those of its description. Neither its name nor its date is trusted.
"""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cpu.huge_pages import has_huge_pages, mapped_file, zeros_in_huge_pages

_MARK = b"Dray kept weights 1\n"
_ALIGNMENT = 64  # bytes, as the kernels read them
_SIZE, _DIGEST = 8, 32  # bytes of the description's size and digest
_SUMMED = 1 << 18  # numbers of 8 bytes that have a sum
_CHUNK = 64 << 20  # bytes that are written at once
_Description = dict[str, Any]
_Bytes = NDArray[np.uint8]
Entry = Sequence[Any]  # of a tensor: where it begins, its dtype, its shape


class KeptFile:
    """A file that has the key that was asked for, mapped."""

    def __init__(self, place: Path, key: Mapping[str, str]) -> None:
        """Map the file; raise OSError, or a ValueError that says what is wrong with its description."""
        with place.open("rb") as file:
            self.description = _described(file)
            if self.description["key"] != key:
                raise ValueError("it is of other weights, or for another processor or version")
            self._memory = mapped_file(file.fileno(), self.description["num_bytes"])

    @classmethod
    def whole(cls, place: Path, key: Mapping[str, str]) -> "KeptFile":
        """Return a file whose bytes are all right, or raise an error as above.

        It is read into memory of its own where its mapping has no huge pages, since weights are slow without them.
        """
        kept = cls(place, key)
        if _sums(kept._memory.numpy()).hex() != kept.description["sums"]:
            raise ValueError("its weights are damaged")
        if not kept.is_shared:
            kept._memory = zeros_in_huge_pages(len(kept._memory))
            with place.open("rb", buffering=0) as file:
                into = memoryview(kept._memory.numpy())  # type: ignore[arg-type]
                while into and (num_read := file.readinto(into)):
                    into = into[num_read:]
        return kept

    @cached_property
    def is_shared(self) -> bool:
        """Whether its pages are those of all that map it, and huge."""
        return has_huge_pages(self._memory)

    def tensor(self, entry: Entry) -> torch.Tensor:
        """Return a tensor in the memory of the file."""
        first, dtype, shape = entry[0], getattr(torch, entry[1]), entry[2]
        return self._memory[first : first + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


class Parts:
    """Tensors that are to be written, each with its place in the file."""

    def __init__(self) -> None:
        self._parts: list[torch.Tensor] = []
        self.num_bytes = 0

    def add(self, tensor: torch.Tensor) -> Entry:
        """Return where this tensor will be."""
        first = self.num_bytes
        self._parts.append(tensor.detach().contiguous())
        self.num_bytes += -(-self._parts[-1].nbytes // _ALIGNMENT) * _ALIGNMENT
        return [first, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]

    def write(self, place: Path, description: _Description) -> None:
        """Write the file, whole or not at all; raise OSError if it cannot be."""
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=place.parent) as scratch:
            made, sums = Path(scratch) / place.name, b""
            with made.open("wb") as file:
                for chunk in self._chunks():
                    file.write(chunk.data)
                    sums += _sums(chunk)
                said = json.dumps({**description, "num_bytes": self.num_bytes, "sums": sums.hex()}).encode()
                file.write(said + hashlib.sha256(said).digest() + len(said).to_bytes(_SIZE, "little") + _MARK)
            made.rename(place)

    def _chunks(self) -> Iterator[_Bytes]:
        """Yield the bytes of the file in long pieces, since what is written so is in huge pages when it is mapped."""
        room, num_used = np.empty(_CHUNK, np.uint8), 0
        for part in self._parts:
            for left in (part.flatten().view(torch.uint8).numpy(), np.zeros(-part.nbytes % _ALIGNMENT, np.uint8)):
                while len(left):
                    num = min(len(left), _CHUNK - num_used)
                    room[num_used : num_used + num] = left[:num]
                    left, num_used = left[num:], num_used + num
                    if num_used == _CHUNK:
                        yield room
                        num_used = 0
        yield room[:num_used]


def _sums(content: _Bytes) -> bytes:
    """Return the sums of the numbers in each part of some bytes, which any change of one number changes."""
    words = content.view(np.uint64)
    sums = np.add.reduceat(words, np.arange(0, len(words), _SUMMED)) if len(words) else words
    return sums.tobytes()


def _described(file: BinaryIO) -> _Description:
    """Return the description at the end of a file; raise a ValueError if there is none of the tensors before it."""
    end = file.seek(0, os.SEEK_END) - _DIGEST - _SIZE - len(_MARK)
    file.seek(max(end, 0))
    digest, size, mark = file.read(_DIGEST), int.from_bytes(file.read(_SIZE), "little"), file.read()
    if mark != _MARK or size > end:
        raise ValueError("it is cut off")
    file.seek(end - size)
    said = file.read(size)
    if hashlib.sha256(said).digest() != digest:
        raise ValueError("its description is damaged")
    description: _Description = json.loads(said)
    if description["num_bytes"] != end - size:
        raise ValueError("it is not whole")
    return description
