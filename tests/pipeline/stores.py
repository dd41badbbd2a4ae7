"""Servers of the S3 protocol (moto) and of Google's (gcp-storage-emulator), each in a process of its own."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",  # else the SDK looks for a cloud machine's metadata first
}
_SECONDS_TO_START = 60


def s3_uri(address: str, path: str) -> str:
    """Return the URI of `path` ("bucket/folder") in the S3 server at host:port."""
    return f"s3://{path}?endpoint_override={address}&scheme=http&allow_bucket_creation=true"


def gcs_uri(address: str, path: str) -> str:
    """Return the URI of `path` in the only bucket of Google's server at host:port."""
    return f"gs://anonymous@bucket/{path}?endpoint_override={address}&scheme=http&retry_limit_seconds=10"


def running_s3_server(host: str = "127.0.0.1") -> AbstractContextManager[str]:
    """Run an S3 server on an address of this machine while the block lasts; yield its host:port."""
    return _running("moto.server", "-H", host, "-p", host=host)


def running_gcs_server() -> AbstractContextManager[str]:
    """Run a server of Google's protocol, with one bucket, while the block lasts; yield its host:port."""
    where = ["--host", "127.0.0.1", "--default-bucket=bucket", "--in-memory", "--quiet", "--port"]
    return _running("gcp_storage_emulator", "start", *where)


@contextmanager
def _running(*module: str, host: str = "127.0.0.1") -> Iterator[str]:
    """Run a module whose last argument, which is added here, is the port."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        address = probe.getsockname()
    process = subprocess.Popen(
        [sys.executable, "-m", *module, str(address[1])], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(address, process)
        yield f"{host}:{address[1]}"
    finally:
        process.terminate()
        process.wait(20)


def _wait_for(address: tuple[str, int], process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < give_up:
        try:
            return socket.create_connection(address, 5).close()
        except OSError:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with exit code {process.returncode}") from None
            time.sleep(0.05)
    raise RuntimeError(f"no server at {address} after {_SECONDS_TO_START} s")
