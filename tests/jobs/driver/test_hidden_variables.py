"""A variable with a secret: what is left of it in this process, and in those that it starts."""

import subprocess
import sys
from pathlib import Path

import pytest

SECRET = "sk-of-this-test-alone"
HIDES = """
import os, subprocess, sys
from pathlib import Path
from jobs.work.serving import hide_variables

hide_variables([name for name in sys.argv[1:] if name])
assert "DRAY_TEST_KEYS" not in os.environ or len(sys.argv) == 1
print(Path("/proc/self/environ").read_bytes())
print(subprocess.run([sys.executable, "-c", "import os; print(os.environ)"], capture_output=True, check=True).stdout)
"""


@pytest.mark.parametrize(("names", "is_shown"), [(["DRAY_TEST_KEYS", "DRAY_NOT_SET"], False), ([], True)])
def test_a_hidden_variable_is_in_no_environment_and_others_stay(names, is_shown):
    process = subprocess.run(
        [sys.executable, "-c", HIDES, *names],
        cwd=Path(__file__).parents[3],
        env={"DRAY_TEST_KEYS": SECRET, "DRAY_TEST_OTHER": "stays"},
        capture_output=True,
        text=True,
        check=True,
    )
    shown_by_system, inherited = process.stdout.splitlines()
    assert (SECRET in shown_by_system, SECRET in inherited) == (is_shown, is_shown)
    assert "stays" in shown_by_system
    assert "stays" in inherited
