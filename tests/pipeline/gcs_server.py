"""A server of Google's storage protocol (gcp-storage-emulator) in a process of its own, and places in it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

BUCKET = "bucket"
_SECONDS_TO_START = 60


@contextmanager
def running_gcs_server() -> Iterator[str]:
    """The host:port of a server with one bucket that lives as long as the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = ["--host=127.0.0.1", f"--port={port}", f"--default-bucket={BUCKET}", "--in-memory", "--quiet"]
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", *where]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def gcs_uri(address: str, path: str) -> str:
    """The URI of `path` in the bucket of the server at host:port."""
    return f"gs://anonymous@{BUCKET}/{path}?endpoint_override={address}&scheme=http&retry_limit_seconds=10"


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < give_up:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
            return
        except OSError:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with exit code {process.returncode}") from None
            time.sleep(0.05)
    raise RuntimeError(f"no server at port {port} after {_SECONDS_TO_START} s")
