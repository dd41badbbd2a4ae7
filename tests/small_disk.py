"""A small disk that a test can fill."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """Mount a disk of this size ("256k") at a new folder `path`; skip the test where this process may not mount it."""
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


def fill(path: Path) -> None:
    """Write a file that takes all the room that its disk has left."""
    with pytest.raises(OSError, match="No space left"):
        _write_without_end(path)


def _write_without_end(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
