"""The memory of the host."""

import sys
from pathlib import Path

import pytest
import torch

from decoding.device import give_back_freed_memory, is_device_fault, is_out_of_memory


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
    hint = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."  # torch ends each of these with it
    assert not is_device_fault(RuntimeError(f"CUDA error: invalid argument\n{hint}"))
    assert is_device_fault(RuntimeError(f"CUDA error: device-side assert triggered\n{hint}"))
    assert not is_device_fault(RuntimeError("a kernel of the CPU had an illegal memory access"))
    assert not is_device_fault(ValueError("CUDA error: an illegal memory access was encountered"))


@pytest.mark.parametrize(
    ("said", "is_fault", "is_memory"),
    [
        ("Triton Error [CUDA]: an illegal memory access was encountered", True, False),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`", True, False),
        ("CUDA error: uncorrectable ECC error encountered", True, False),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", False, True),
        ("Triton Error [CUDA]: out of memory", False, True),
        ("CUDA error: operation not permitted when stream is capturing", False, False),
        ("CUDA error: operation failed due to a previous error during capture", False, False),
        ("Triton Error [CUDA]: invalid argument", False, False),
    ],
)
@pytest.mark.parametrize("kind", [RuntimeError, torch.AcceleratorError])
def test_what_triton_and_the_librarys_products_say_is_a_fault_memory_or_neither(kind, said, is_fault, is_memory):
    assert is_out_of_memory(kind(said)) == is_memory
    if kind is RuntimeError or "invalid" not in said:
        assert is_device_fault(kind(said)) == is_fault
