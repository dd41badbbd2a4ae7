"""The memory of the host."""

import sys
from pathlib import Path

import pytest
import torch

from decoding.device import give_back_freed_memory


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
