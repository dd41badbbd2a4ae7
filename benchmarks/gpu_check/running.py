"""Runs a part in a process of its own, for a limited time, and keeps what came of it."""

import os
import shlex
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gpu_check.parts import Part
from benchmarks.gpu_check.progress import last_line
from benchmarks.gpu_check.results import PartResult, forget, keep

ROOT = Path(__file__).parents[2]
_GRACE_SECONDS = 10.0  # between asking a process to end and killing it


def run_part(part: Part, folder: Path, pairs: Path, limit_seconds: float) -> PartResult:
    """Run a part for `limit_seconds` at most; return what came of it, which is kept in `folder`, too.

    The log is written while it runs, so that something is left if this process is killed as well: then nothing is kept
    as the part's result, and it runs again.
    """
    forget(part.name, folder)
    folder.mkdir(parents=True, exist_ok=True)
    measured, log = (folder.absolute() / f"{part.name}{suffix}" for suffix in (".measured.json", ".log"))
    command = part.command(measured, pairs.absolute())
    started, began = datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **part.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        exit_code = _wait(process, limit_seconds)
    why = ""
    if exit_code is None:
        why = f"stopped after {limit_seconds:g} s: {last_line(log)}"
    elif exit_code:
        why = f"exit code {exit_code}: {last_line(log)}"
    result = PartResult(
        part=part.name,
        status="done" if exit_code == 0 else "stopped" if exit_code is None else "failed",
        command=shlex.join([*(f"{name}={value}" for name, value in part.environment.items()), *command]),
        started=started,
        seconds=round(time.monotonic() - began, 1),
        why=why,
        measured=part.read(measured, log),
    )
    keep(result, folder)
    return result


def _wait(process: "subprocess.Popen[bytes]", limit_seconds: float) -> int | None:
    """Return the exit code, None if the process had to be ended; it has ended in any case, also by an interrupt."""
    try:
        return process.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
