"""The library of CPU kernels: built once, found again, and done without where it cannot be had."""

import ctypes
import os
import shutil
from pathlib import Path

import pytest
import torch

from decoding.cpu import library


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """No library loaded yet, and an empty folder for it."""
    monkeypatch.setenv("DRAY_KERNELS", "on")
    monkeypatch.setenv("DRAY_CACHE", str(tmp_path))
    library._built.cache_clear()
    yield tmp_path
    library._built.cache_clear()


@pytest.fixture
def compiler():
    """There is one; what it made is loaded, into the test's own folder if the test has taken one before."""
    if library.library() is None:
        pytest.skip("no C++ compiler here")


def test_they_are_compiled_once_and_kept(fresh, compiler):
    (file,) = fresh.iterdir()
    library._built.cache_clear()
    written = file.stat().st_mtime_ns
    assert library.library() is not None
    assert [p.stat().st_mtime_ns for p in fresh.iterdir()] == [written]


def test_kernels_for_another_processor_are_kept_apart(fresh, compiler, monkeypatch):
    library._built.cache_clear()
    monkeypatch.setenv("DRAY_KERNELS_MARCH", "native" if os.environ.get("DRAY_KERNELS_MARCH") else "x86-64-v3")
    if library.library() is None:
        pytest.skip("the compiler of this processor does not know x86-64-v3")
    assert len(list(fresh.iterdir())) == 2


def test_without_a_compiler_there_are_none(fresh, monkeypatch):
    monkeypatch.setattr(library.shutil, "which", lambda _: None)
    assert library.library() is None


def test_a_compiler_that_fails_is_no_reason_to_stop(compiler, fresh, monkeypatch, caplog):
    monkeypatch.setattr(library, "_FLAGS", ("--no-such-flag",))
    assert library.library() is None
    assert "could not be built" in caplog.text


def test_a_compiler_that_cannot_even_say_its_version_is_no_reason_to_stop(fresh, monkeypatch, caplog):
    compiler = fresh / "broken"
    compiler.write_text("#!/bin/sh\necho 'no developer tools were found' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert library.library() is None
    assert "no developer tools were found" in caplog.text


def test_they_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("DRAY_KERNELS", "off")
    assert library.library() is None


def test_an_openmp_runtime_that_another_package_brings_does_not_count(compiler, tmp_path):
    (torchs,) = Path(torch.__file__).parent.joinpath("lib").glob("libgomp*.so*")
    foreign = shutil.copy(torchs, tmp_path / "libgomp-of-another-package.so")
    other = ctypes.CDLL(str(foreign))
    ours = library._built()
    assert ours is not None, "it shares torch's runtime, though another one is in memory"
    assert not library._has_another_openmp(ours)
    assert library._has_another_openmp(other), "this one has its own threads"
