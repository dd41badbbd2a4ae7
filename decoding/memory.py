"""Memory: whether an exception says that it ran out, and giving back what nobody holds any more."""

import ctypes
import sys

import torch

_SAYINGS = ("can't allocate memory", "not enough memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it does, on any device. torch's CPU allocator raises a plain RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(saying in str(error).lower() for saying in _SAYINGS)


def give_back_freed_memory() -> None:
    """Hand freed memory of the host back to the operating system, where the C library keeps it for later (glibc).

    Worth it once, after loading: reading, packing and timing models frees more than generating takes.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)
