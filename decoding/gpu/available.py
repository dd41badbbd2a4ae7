"""Availability of our Triton kernels: they run on CUDA devices, and for tests on the CPU, by Triton's interpreter.

Triton comes with the CUDA builds of torch. The kernels are imported only where they run, since a CPU installation has
no Triton. DRAY_TRITON=off runs torch's own operations on CUDA. TRITON_INTERPRET=1, set before Python starts, runs the
kernels' source on the CPU, operation by operation: thousands of times slower, for tests.
"""

import importlib.metadata
import importlib.util
import os

import torch


def kernels_run_on(device: torch.device) -> bool:
    """Tell whether the Triton kernels run on tensors of this device."""
    wish = os.environ.get("DRAY_TRITON", "on")
    if wish not in ("on", "off"):
        raise ValueError(f"DRAY_TRITON must be 'on' or 'off', got {wish!r}")
    if wish == "off" or importlib.util.find_spec("triton") is None:
        return False
    return device.type == "cuda" or (device.type == "cpu" and is_interpreted())


def is_interpreted() -> bool:
    """Tell whether the kernels run in Triton's interpreter.

    It multiplies bfloat16 wrongly, so kernels that multiply convert their operands to float32 there.
    """
    return os.environ.get("TRITON_INTERPRET") == "1"


def gpu_kind(device_name: str) -> str:
    """Return what decides how the kernels round on a GPU: its name, and the compiler."""
    return f"{device_name}, triton {importlib.metadata.version('triton')}"
