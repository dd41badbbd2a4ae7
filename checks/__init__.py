"""CHECKS: the rules of `make check` that no tool we know holds."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def tracked_files(pattern: str) -> list[str]:
    """Return the tracked files that match a pattern, less those that were removed just now."""
    command = ["git", "ls-files", pattern]
    tracked = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in tracked.splitlines() if (ROOT / name).is_file()]


def print_violations(violations: Iterable[str], if_none: str) -> int:
    """Print the violations, or a line that there is none; return the exit code."""
    found = list(violations)
    print("\n".join(found) or if_none)
    return bool(found)
