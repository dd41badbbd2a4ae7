"""The CPU kernels: built once, found again, and done without where they cannot be had."""

import ctypes
import math
import os
import shutil
from pathlib import Path

import pytest
import torch

from decoding.fused import kernels


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """No library loaded yet, and an empty folder for it."""
    monkeypatch.setenv("DRAY_CACHE", str(tmp_path))
    kernels._built.cache_clear()
    yield tmp_path
    kernels._built.cache_clear()


@pytest.fixture
def compiler():
    """There is one; what it made is loaded, into the test's own folder if the test has taken one before."""
    if kernels.load(torch.float32, 16, 64) is None:
        pytest.skip("no C++ compiler here")


def test_they_are_compiled_once_and_kept(fresh, compiler):
    (library,) = fresh.iterdir()
    kernels._built.cache_clear()
    written = library.stat().st_mtime_ns
    assert kernels.load(torch.bfloat16, 64, 128) is not None
    assert [p.stat().st_mtime_ns for p in fresh.iterdir()] == [written]


def test_kernels_for_another_processor_are_kept_apart(fresh, compiler, monkeypatch):
    kernels._built.cache_clear()
    monkeypatch.setenv("DRAY_KERNELS_MARCH", "native" if os.environ.get("DRAY_KERNELS_MARCH") else "x86-64-v3")
    if kernels.load(torch.float32, 16, 64) is None:
        pytest.skip("the compiler of this processor does not know x86-64-v3")
    assert len(list(fresh.iterdir())) == 2


def test_without_a_compiler_there_are_none(fresh, monkeypatch):
    monkeypatch.setattr(kernels.shutil, "which", lambda _: None)
    assert kernels.load(torch.float32, 64, 128) is None


def test_a_compiler_that_fails_is_no_reason_to_stop(compiler, fresh, monkeypatch, caplog):
    monkeypatch.setattr(kernels, "_FLAGS", ("--no-such-flag",))
    assert kernels.load(torch.float32, 64, 128) is None
    assert "could not be built" in caplog.text


def test_a_compiler_that_cannot_even_say_its_version_is_no_reason_to_stop(fresh, monkeypatch, caplog):
    compiler = fresh / "broken"
    compiler.write_text("#!/bin/sh\necho 'no developer tools were found' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert kernels.load(torch.float32, 64, 128) is None
    assert "no developer tools were found" in caplog.text


def test_they_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("DRAY_KERNELS", "off")
    assert kernels.load(torch.float32, 64, 128) is None


@pytest.mark.parametrize(
    ("dtype", "head_size", "hidden"), [(torch.float16, 64, 128), (torch.float32, 40, 128), (torch.float32, 64, 100)]
)
def test_unsupported_sizes_are_left_to_torch(dtype, head_size, hidden):
    assert kernels.load(dtype, head_size, hidden) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normalization_is_that_of_torch(compiler, dtype):
    functions = kernels.load(dtype, 64, 128)
    x = (torch.randn(20, 128, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    weight = torch.linspace(-2, 2, 128).to(dtype)
    expected = torch.nn.functional.rms_norm(x.double(), (128,), weight.double(), 1e-5)
    found = functions.rms_norm(x, weight, 1e-5).double()
    unit = torch.finfo(dtype).eps
    assert float(((found - expected).abs() / expected.abs().clamp(min=1e-3)).max()) <= 2 * unit


def test_normalization_passes_on_values_that_are_not_finite(compiler):
    functions = kernels.load(torch.bfloat16, 64, 128)
    x = torch.ones(2, 128, dtype=torch.bfloat16)
    x[1, 5] = math.nan
    found = functions.rms_norm(x, torch.ones(128, dtype=torch.bfloat16), 1e-5)
    assert found[0].isfinite().all()
    assert found[1].isnan().all()


def test_an_openmp_runtime_that_another_package_brings_does_not_count(compiler, tmp_path):
    (torchs,) = Path(torch.__file__).parent.joinpath("lib").glob("libgomp*.so*")
    foreign = shutil.copy(torchs, tmp_path / "libgomp-of-another-package.so")
    other = ctypes.CDLL(str(foreign))
    library = kernels._built()
    assert library is not None, "it shares torch's runtime, though another one is in memory"
    assert not kernels._has_another_openmp(library)
    assert kernels._has_another_openmp(other), "this one has its own threads"
