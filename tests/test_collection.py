"""Which tests can be collected where there is no Ray."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# `import` of a module that sys.modules holds as None fails, as if it were not installed.
_WITHOUT = "import sys; sys.modules.update(dict.fromkeys({names})); import pytest; sys.exit(pytest.main({arguments}))"


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["tests"], ["ray"]),
        (["--confcutdir=tests/gpu", "tests/gpu"], ["ray", "pyarrow", "pydantic"]),
    ],
    ids=["all tests", "the check-up of a GPU"],
)
def test_tests_are_collected_without_ray(arguments, absent):
    code = _WITHOUT.format(names=absent, arguments=["--collect-only", "-q", "-p", "no:cacheprovider", *arguments])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "tests/gpu/test_text.py" in done.stdout
    assert ("tests/decoding/engine/test_losslessness.py" in done.stdout) == (arguments == ["tests"])
