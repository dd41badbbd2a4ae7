"""Availability of our Triton kernels: they run on CUDA devices, and for tests on the CPU, by Triton's interpreter.

Triton comes with the CUDA builds of torch. The kernels are imported only where they run, since a CPU installation has
no Triton. DRAY_TRITON=off runs torch's own operations on CUDA. TRITON_INTERPRET=1, set before Python starts, runs the
kernels' source on the CPU, operation by operation: thousands of times slower, for tests.
"""

import importlib.util
import os
import sys
from functools import cache

import torch

_TILES = 2  # another number where tiles add in another order: 2 since attention of 5 and more heads a KV head changed
_LEAST_CAPABILITY = (8, 0)  # bfloat16 on tensor cores
# Bytes of fast memory that a program may have, at least: on an H100 and later; on an A100, and not on a card for games.
ROOMY, HALF_AS_ROOMY = 200 << 10, 128 << 10


def kernels_run_on(device: torch.device) -> bool:
    """Tell whether the Triton kernels run on tensors of this device: an NVIDIA GPU of capability 8.0 or more."""
    if device.type not in ("cuda", "cpu") or (device.type == "cpu" and not is_interpreted()):
        return False
    return _kernels_run(device, os.environ.get("DRAY_TRITON", "on"))


@cache
def _kernels_run(device: torch.device, wish: str) -> bool:
    if wish not in ("on", "off"):
        raise ValueError(f"DRAY_TRITON must be 'on' or 'off', got {wish!r}")
    if wish == "off" or importlib.util.find_spec("triton") is None:
        return False
    if device.type == "cpu":
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= _LEAST_CAPABILITY


def is_interpreted() -> bool:
    """Tell whether the kernels run in Triton's interpreter.

    It multiplies bfloat16 wrongly, so kernels that multiply convert their operands to float32 there.
    """
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def shared_memory() -> int:
    """Return the bytes of fast memory that one program may have; in the interpreter, those of an H100."""
    if not torch.cuda.is_available():
        return 227 << 10
    from triton.runtime import driver

    return int(driver.active.utils.get_device_properties(torch.cuda.current_device())["max_shared_mem"])


def gpu_kind(device_name: str) -> str:
    """Return what decides how the kernels round on a GPU: its name, the compiler, and the version of the tiles."""
    import triton  # it is here if a kernel ran

    return f"{device_name}, triton {triton.__version__}, tiles {_TILES}"


def kernel_errors() -> tuple[type[Exception], ...]:
    """Return what a kernel raises that cannot be compiled or does not fit this GPU; nothing where none has run."""
    errors = sys.modules.get("triton.errors") or sys.modules.get("triton.runtime.errors")
    return () if errors is None else (errors.TritonError,)
