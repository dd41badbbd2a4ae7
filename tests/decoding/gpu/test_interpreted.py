"""Tests on interpreted kernels, each file in its own process: Triton must know that it interprets before it starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from decoding.gpu.available import is_interpreted

_ROOT = Path(__file__).parents[3]
_FILES = sorted((Path(__file__).parent / "interpreted").glob("test_*.py"))
# Heads run on the same kernels.
_FILES += [_ROOT / f"tests/decoding/heads/test_{kind}_head.py" for kind in ("eagle3", "dflash")]
_FILES += [_ROOT / "tests/decoding/states/test_recurrence.py"]


@pytest.mark.timeout(900)
@pytest.mark.skipif(is_interpreted(), reason="the files are collected as they are")
@pytest.mark.parametrize("file", _FILES, ids=[file.stem for file in _FILES])
def test_kernels_pass_their_tests_in_the_interpreter(file):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    pytest_here = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--confcutdir=tests/decoding",
        "-m",
        "not slow",
    ]
    done = subprocess.run([*pytest_here, str(file)], cwd=_ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
