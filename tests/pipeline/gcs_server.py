"""A server of Google's storage protocol (gcp-storage-emulator) in a process of its own, and URIs in it."""

from __future__ import annotations

import socket
import sys
from contextlib import AbstractContextManager

from tests.pipeline.server import running_server

BUCKET = "bucket"


def running_gcs_server() -> AbstractContextManager[str]:
    """Run a server with one bucket while the block lasts; yield its host:port."""
    return running_server(_command, _ask)


def gcs_uri(address: str, path: str) -> str:
    """Return the URI of `path` in the bucket of the server at host:port."""
    return f"gs://anonymous@{BUCKET}/{path}?endpoint_override={address}&scheme=http&retry_limit_seconds=10"


def _command(port: int) -> list[str]:
    where = ["--host=127.0.0.1", f"--port={port}", f"--default-bucket={BUCKET}", "--in-memory", "--quiet"]
    return [sys.executable, "-m", "gcp_storage_emulator", "start", *where]


def _ask(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), 5).close()
