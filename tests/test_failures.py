"""A failure is printed when it happens."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = "def test_it_fails():\n    assert 'so many' == 'too few'\n\ndef test_it_passes():\n    pass\n"


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one process", "workers"])
def test_a_failure_is_printed_before_the_suite_ends(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "test_of_two.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.failures", f"--rootdir={tmp_path}", *options, str(tmp_path)]
    printed = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True).stdout
    before_the_end, _, _ = printed.partition("= FAILURES =")
    assert "call of test_of_two.py::test_it_fails failed" in before_the_end
    assert "assert 'so many' == 'too few'" in before_the_end
    assert "1 failed, 1 passed" in printed
