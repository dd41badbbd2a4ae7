"""Files of kept weights: written whole or not at all, and mapped once they are found to be what was written.

torch reads them (`weights_only`, so they hold numbers and names alone). The pages of a mapping are those of all that
map the file; what a process writes there it has alone. The name of a file has the sum of its bytes, and in it is the
key of what it was made of: both must fit.
"""

import hashlib
import mmap
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoding.cpu.huge_pages import HugePages, advise, has_huge_pages

_READ = 2 << 20  # bytes at once
_SUMMED = 64  # words of 8 bytes that have a sum, which is taken at nearly the speed of the memory: a sector of a disk
Content = dict[str, Any]


def write(folder: Path, name: str, content: Content) -> Path:
    """Write a file of this name, and of the sum of its bytes; raise OSError or RuntimeError if that cannot be done."""
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as scratch:
        made = Path(scratch) / "made"
        torch.save(content, made)
        return made.rename(folder / f"{name}-{_sum(made)}.dray")


def find(folder: Path, name: str) -> Path | None:
    """Return the file of this name, if it is there."""
    return next(folder.glob(f"{name}-*.dray"), None)


def mapped(place: Path, key: Mapping[str, str]) -> Content:
    """Return the content of a file that has this key; raise OSError, or a ValueError if it has another one."""
    content: Content = torch.load(place, mmap=True, weights_only=True)
    if content["key"] != key:
        raise ValueError("it is of other weights, or for another processor or version")
    for memory in _memories(content):
        advise(memory, "MADV_HUGEPAGE")
    return content


def is_shared(content: Content) -> bool:
    """Tell whether the packed weights are in huge pages, which all that map the file have in common."""
    return all(map(has_huge_pages, _memories(content)))


def whole(place: Path, key: Mapping[str, str]) -> tuple[Content, bool]:
    """Return the content of a file, of which each byte was read, and whether it `is_shared`; raise as `mapped`.

    Where there are no huge pages for files, weights are copied into those of this process: they are read faster.
    """
    if place.stem.rpartition("-")[2] != _sum(place):
        raise ValueError("it is damaged")
    content = mapped(place, key)
    if is_shared(content):
        return content, True
    memory = HugePages(sum(layer["packed"].nbytes for layer in content["layers"]) * 33 // 32)
    for layer in content["layers"]:
        shared, layer["packed"] = layer["packed"], memory.copy(layer["packed"])
        advise(shared, "MADV_DONTNEED")
    return content, False


def _memories(content: Content) -> list[torch.Tensor]:
    """Return the bytes among which the packed weights lie."""
    storages = {(each := layer["packed"].untyped_storage()).data_ptr(): each for layer in content["layers"]}
    return [torch.empty(0, dtype=torch.uint8).set_(each) for each in storages.values()]


def _sum(file: Path) -> str:
    """Return a digest of the sums of a file's sectors; an empty file is a ValueError.

    A change of one byte changes it, and so do sectors that are missing, zero, or in another order.

    The file is mapped, so that its pages are huge where those of files can be, and each part is let go after its sum.
    """
    found = hashlib.sha256()
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        with suppress(AttributeError, OSError):  # a system without them
            pages.madvise(mmap.MADV_HUGEPAGE)
        for first in range(0, len(pages), _READ):
            part = pages[first : first + _READ]
            num = len(part) // 8
            pages.madvise(mmap.MADV_DONTNEED, first, _READ)
            sums = np.add.reduceat(np.frombuffer(part, np.uint64, num), np.arange(0, num, _SUMMED))
            found.update(sums.tobytes() + part[8 * num :])
    return found.hexdigest()[:32]
