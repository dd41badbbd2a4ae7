"""The device that tensors are on: how it is picked, how host values get there, and what to do about its memory."""

import ctypes
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from decoding.choices import Device as Device

_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "cublas_status_alloc_failed")
# What Triton and the library's products raise as plain RuntimeErrors, where torch has an AcceleratorError.
_FAULTS = (
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "device-side assert",
    "unspecified launch failure",
    "launch timed out",
    "uncorrectable",
    "cublas_status_execution_failed",
    "cublas_status_internal_error",
)
_HINT = "to enable device-side assertions"  # what torch ends each of CUDA's errors with
_OF_CUDA = ("cuda error", "triton error [cuda]")
_CAPTURING = "captur"  # the device refuses to record a piece of work, and is well


def pick_device(device: Device) -> torch.device:
    """Return the device that was asked for; raise a ValueError if this machine lacks it."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch sees no CUDA device here; use device 'cpu' or 'auto'")
    use_cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if use_cuda else "cpu")


def to_device(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Copy host values (numbers, nested lists) into a tensor on the device, without waiting for its queued work.

    `torch.tensor(values, device=...)` would wait for it. The values have been read when this returns.
    """
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(do: Callable[[], object], device: torch.device) -> float:
    """Measure what the device needs for the work that `do` gives it."""
    synchronize(device)
    started = time.perf_counter()
    do()
    synchronize(device)
    return time.perf_counter() - started


def name_of(device: torch.device) -> str:
    """Return the device's everyday name: "cpu", or that of the GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception says that memory ran out, on any device; torch on CPU raises a plain RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY)


def is_device_fault(error: BaseException) -> bool:
    """Tell whether an exception says that a device failed, after which its process can compute nothing more."""
    text = str(error).lower().replace(_HINT, "")
    if not isinstance(error, RuntimeError) or is_out_of_memory(error) or _CAPTURING in text:
        return False
    is_said = any(words in text for words in _OF_CUDA) and any(words in text for words in _FAULTS)
    return isinstance(error, torch.AcceleratorError) or is_said


def give_back_freed_memory() -> None:
    """Return freed host memory to the operating system; the C library (glibc) would keep it for later.

    Call it once, after loading: reading, packing and timing models frees more memory than generating takes.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)
