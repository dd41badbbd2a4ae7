"""The memory of the host."""

import sys
from pathlib import Path

import pytest
import torch

from decoding.device import give_back_freed_memory, is_device_fault


@pytest.mark.skipif(sys.platform != "linux", reason="other systems are left alone")
def test_freed_memory_goes_back_to_the_operating_system():
    small = [torch.zeros(1 << 14) for _ in range(4000)]  # 64 KB each: from the heap, which the C library keeps
    kept = small[-1]
    full = _resident()
    del small
    before = _resident()
    give_back_freed_memory()
    assert _resident() < full - 150_000_000
    assert _resident() <= before
    assert kept.sum() == 0


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_device_fault_is_an_error_of_the_device_and_not_a_lack_of_its_memory():
    assert is_device_fault(torch.AcceleratorError("CUDA error: an illegal memory access was encountered"))
    assert not is_device_fault(torch.AcceleratorError("CUDA error: out of memory"))
    assert not is_device_fault(RuntimeError("CUDA error: an illegal memory access was encountered"))
