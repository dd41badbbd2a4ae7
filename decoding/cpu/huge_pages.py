"""Memory in huge pages, if the operating system has them: weights are read from it up to 1.7 times as fast.

A weight is read from one end to the other in every forward. With pages of 4 KB the processor looks up a new page every
hundred nanoseconds, and prefetching stops at each page's end; `benchmarks/linears.py` prints both times.
"""

import ctypes
import mmap
from contextlib import suppress

import numpy as np
import torch

_PAGE = 2 << 20  # of x86 and, with 4 KB pages beside it, of ARM
_ALIGNMENT = 64  # a cache line
_SAMPLED = 8  # huge pages of a file, of which a byte is read


class HugePages:
    """Memory for many tensors from one mapping, which is freed when the last of them is."""

    def __init__(self, num_bytes: int) -> None:
        """Reserve at least `num_bytes`. Pages that are never written take no memory."""
        num_bytes = max(-(-num_bytes // _PAGE), 1) * _PAGE
        self._bytes = torch.from_numpy(np.frombuffer(_mapping(num_bytes, "MADV_HUGEPAGE"), dtype=np.uint8))
        self._num_used = 0

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """Return a contiguous copy of `source` in this memory, or in ordinary memory if there is no room left."""
        num_bytes = source.numel() * source.element_size()
        if self._num_used + num_bytes > len(self._bytes):
            return source.clone(memory_format=torch.contiguous_format)
        place = self._bytes[self._num_used : self._num_used + num_bytes]
        self._num_used += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return place.view(source.dtype).view(source.shape).copy_(source)


def advise(tensor: torch.Tensor, advice: str) -> None:
    """Give advice, by its name in `mmap`, on the pages that hold nothing but this tensor; not on systems without it."""
    first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    num_bytes = (tensor.data_ptr() + tensor.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if num_bytes > 0 and hasattr(mmap, advice):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(num_bytes), getattr(mmap, advice))


def has_huge_pages(mapped: torch.Tensor) -> bool:
    """Tell whether bytes of a mapped file are in huge pages; true for a few bytes. Linux alone says so.

    Some file systems have none (ext4 before Linux 6.16), and a file that was read in small parts has few.
    """
    num_pages = len(mapped) // _PAGE
    mapped[: num_pages * _PAGE : max(num_pages // _SAMPLED, 1) * _PAGE].sum()  # reads a byte of some pages
    found, is_here = {"Rss:": 0, "FilePmdMapped:": 0}, False
    with suppress(OSError), open("/proc/self/smaps") as lines:
        for name, *values in map(str.split, lines):
            if "-" in name:
                first, end = (int(each, 16) for each in name.split("-"))
                is_here = first < mapped.data_ptr() + len(mapped) and mapped.data_ptr() < end
            elif is_here and name in found:
                found[name] += int(values[0]) << 10
    return num_pages < _SAMPLED or found["FilePmdMapped:"] >= 0.95 * (found["Rss:"] - 2 * _PAGE) > 0


def zeros_in_small_pages(num_bytes: int) -> torch.Tensor:
    """Return zeroed bytes in small pages, each of which takes memory only when it is written.

    It is for memory that is reserved and rarely filled. numpy would use huge pages, of which the first byte takes 2 MB.
    """
    return _zeros(num_bytes, "MADV_NOHUGEPAGE")


def zeros_in_huge_pages(num_bytes: int) -> torch.Tensor:
    """Return zeroed bytes in huge pages, for memory that is filled soon: a page that is new costs time once."""
    return _zeros(num_bytes, "MADV_HUGEPAGE")


def _zeros(num_bytes: int, advice: str) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(_mapping(max(num_bytes, 1), advice), dtype=np.uint8)[:num_bytes])


def _mapping(num_bytes: int, advice: str) -> mmap.mmap:
    if not hasattr(mmap, advice):
        return mmap.mmap(-1, num_bytes)
    mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without them gives ordinary pages
        mapping.madvise(getattr(mmap, advice))
    return mapping
