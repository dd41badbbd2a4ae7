"""Where our Triton kernels run: on CUDA devices, and for tests on the CPU, by Triton's interpreter.

Triton comes with the CUDA builds of torch. The kernels are imported only where they run, since a CPU installation has
no Triton. DRAY_TRITON=off runs torch's own operations on CUDA; DRAY_TRITON=interpret runs the kernels' Python source on
the CPU, operation by operation: thousands of times slower, for tests.
"""

import importlib.util
import os

import torch


def kernels_run_on(device: torch.device) -> bool:
    """Tell whether the Triton kernels run on tensors of this device."""
    wish = os.environ.get("DRAY_TRITON", "on")
    if wish not in ("on", "off", "interpret"):
        raise ValueError(f"DRAY_TRITON must be 'on', 'off' or 'interpret', got {wish!r}")
    if wish == "off" or importlib.util.find_spec("triton") is None:
        return False
    if device.type == "cuda":
        return True
    if wish == "interpret" and device.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is declared, which is when its file is imported
        return True
    return False


def is_interpreted() -> bool:
    """Tell whether kernels that are declared now run in Triton's interpreter.

    It multiplies bfloat16 wrongly, so kernels that multiply convert their operands to float32 there.
    """
    return os.environ.get("TRITON_INTERPRET") == "1"
