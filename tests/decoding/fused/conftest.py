"""The ways in which the attention of fused layers runs on a CPU."""

import pytest
import torch

from decoding.fused import kernels


@pytest.fixture(params=["kernels", "attention kernel", "torch"])
def attention(request, monkeypatch):
    """All our kernels; only that of attention, as where oneDNN multiplies; or none."""
    if request.param == "torch":
        monkeypatch.setenv("DRAY_KERNELS", "off")
    elif kernels.load(torch.float32, 16, 64) is None:
        pytest.skip("no C++ compiler here")
    elif request.param == "attention kernel":
        monkeypatch.setattr("decoding.fused.packed_linear.kernel_function", lambda _: None)
    return request.param


@pytest.fixture(params=["here", "emulated"])
def _products(request, monkeypatch):
    """The products in bfloat16 of this processor, and those of tiles that are written out in C."""
    if request.param == "emulated":
        monkeypatch.setenv("DRAY_KERNELS_TILES", "emulated")
