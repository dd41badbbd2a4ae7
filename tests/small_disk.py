"""A small disk of our own, to be filled."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A disk of this size ("256k") at a new folder `path`; where this process may not mount it, the test is skipped."""
    path.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"cannot mount a disk of our own: {mount.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
