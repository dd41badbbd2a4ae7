"""Commit: a process with the code of one commit, which answers a line of JSON with another."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


class Commit:
    """The process, whose messages are those of this one; `worker.py` says what it can be asked."""

    def __init__(self, folder: Path) -> None:
        """Start it in the folder of a commit's code."""
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py"))],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, name: str, **arguments: Any) -> Any:
        """Let the worker do something, and return what it answers. Raises RuntimeError if it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([name, arguments]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the worker ended with code {self._process.wait()}; its error is above")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
