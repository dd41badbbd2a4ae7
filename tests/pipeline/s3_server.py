"""A real server of the S3 protocol (moto) in a process of its own, and URIs in it."""

from __future__ import annotations

import sys
import urllib.request
from contextlib import AbstractContextManager

from tests.pipeline.server import running_server

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",  # else the SDK looks for a cloud machine's metadata first
}


def running_s3_server() -> AbstractContextManager[str]:
    """Run a server while the block lasts; yield its host:port."""
    return running_server(_command, _ask)


def s3_uri(address: str, path: str) -> str:
    """Return the URI of `path` ("bucket/folder") in the server at host:port."""
    return f"s3://{path}?endpoint_override={address}&scheme=http&allow_bucket_creation=true"


def _command(port: int) -> list[str]:
    return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]


def _ask(port: int) -> None:
    urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5).close()
