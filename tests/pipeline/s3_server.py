"""A real server of the S3 protocol (moto) in a process of its own, and places in it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",  # else the SDK looks for a cloud machine's metadata first
}
_SECONDS_TO_START = 60


@contextmanager
def running_s3_server() -> Iterator[str]:
    """The host:port of a server that lives as long as the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(f"http://127.0.0.1:{port}/moto-api/", process)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def s3_uri(address: str, path: str) -> str:
    """The URI of `path` ("bucket/folder") in the server at host:port."""
    return f"s3://{path}?endpoint_override={address}&scheme=http&allow_bucket_creation=true"


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < give_up:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if process.poll() is not None:
                raise RuntimeError(f"the S3 server ended with exit code {process.returncode}") from None
            time.sleep(0.05)
    raise RuntimeError(f"no S3 server at {url} after {_SECONDS_TO_START} s")
