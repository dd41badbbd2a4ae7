"""The folder of kept files of one test."""

from pathlib import Path

import pytest
import torch

from decoding.fused import kernels
from decoding.kept import models


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of kept files, in which small models are kept, too."""
    if not kernels.linear_kind(torch.float32):
        pytest.skip("no compiler here, or no AVX2")
    monkeypatch.setenv("DRAY_KEEP_WEIGHTS", "on")
    monkeypatch.setenv("DRAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(models, "_LEAST", 0)
    return tmp_path / "cache" / "weights"
