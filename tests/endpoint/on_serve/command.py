"""A command that serves, as a process of its own with a cluster of its own."""

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]
READY = "ready; SIGTERM"
OWN_CLUSTER = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def ready(arguments: Sequence[str], environment: Mapping[str, str] = OWN_CLUSTER) -> Iterator[subprocess.Popen[str]]:
    """The process of a command once it says that it is ready; it ends with the block."""
    process = subprocess.Popen(
        arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if line.startswith(READY):
                break
        assert said, "it said nothing"
        assert said[-1].startswith(READY), "".join(said)
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(120)
