"""Servers of storage protocols, each in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SECONDS_TO_START = 60


@contextmanager
def running_server(command: Callable[[int], list[str]], ask: Callable[[int], None]) -> Iterator[str]:
    """The host:port of a server that lives as long as the block.

    `command` starts it at a port; `ask` raises OSError until it is up.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process, ask)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def _wait_for(port: int, process: subprocess.Popen[bytes], ask: Callable[[int], None]) -> None:
    give_up = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < give_up:
        try:
            ask(port)
            return
        except OSError:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with exit code {process.returncode}") from None
            time.sleep(0.05)
    raise RuntimeError(f"no server at port {port} after {_SECONDS_TO_START} s")
