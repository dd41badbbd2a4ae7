"""A run of the real command with vLLM, in a process of its own, and what is left of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.jobs.runs import write_jsonl
from tests.vllm.conftest import PAIR

ROOT = Path(__file__).parents[2]
_WORDS = ("Write a shopping list", "Once upon a time", "The magpie of the cave", '{"name": "Sandra",', "7 x 8 =")


def good_rows(count: int) -> list[dict[str, Any]]:
    """Return rows that the bundled pair can write."""
    return [{"id": f"row-{i}", "kind": "abc"[i % 3], "prompt": f"{_WORDS[i % len(_WORDS)]} {i}"} for i in range(count)]


@dataclass
class VllmRun:
    """A run in a folder, and its commands."""

    folder: Path
    disk: Path | None = None  # of the run directory, if it is another one
    backend: str = "vllm"

    @property
    def output(self) -> Path:
        """The run directory."""
        return (self.disk or self.folder) / "out"

    def read(self, rows: list[Any]) -> None:
        """Write the input."""
        write_jsonl(self.folder / "in.jsonl", rows)

    def words(self, command: str, *flags: str) -> list[str]:
        """Return the words of a command that generates."""
        return [
            *(sys.executable, "-m", f"jobs.{command}"),
            f"--input.path={self.folder / 'in.jsonl'}",
            "--input.id_column=id",
            "--input.carry_columns=[kind]",
            "--input.prompts_are=text",
            f"--output.path={self.output}",
            f"--models.target={PAIR / 'target'}",
            f"--models.draft={PAIR / 'draft'}",
            "--models.device=cpu",
            "--sampling.max_tokens=24",
            f"--engine.backend={self.backend}",
            *(['--engine.vllm={"enforce_eager": true}'] if self.backend == "vllm" else []),
            "--engine.num_slots=4",
            "--engine.num_speculative_tokens=3",
            "--engine.max_model_len=128",
            "--run.rows_per_unit=6",
            "--run.progress=none",
            *flags,
        ]

    def start(self, *flags: str, command: str = "generate") -> subprocess.Popen[str]:
        """Begin a command that generates."""
        return subprocess.Popen(
            self.words(command, *flags),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=_environment(),
        )

    def generate(self, *flags: str, command: str = "generate") -> tuple[int, str]:
        """Do a command that generates to its end; return its exit code and what it printed."""
        process = self.start(*flags, command=command)
        printed, _ = process.communicate(timeout=600)
        return process.returncode, printed

    def tool(self, *words: str) -> tuple[int, str]:
        """Do another command; return its exit code and what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, cwd=ROOT, env=_environment(), timeout=300
        )
        return done.returncode, done.stdout + done.stderr

    def json(self, name: str) -> dict[str, Any]:
        """Return a JSON file of the run directory."""
        content: dict[str, Any] = json.loads((self.output / name).read_text())
        return content


def vllm_processes() -> list[int]:
    """Return the pids of all processes that have loaded vLLM's library, but this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) != os.getpid() and "/vllm/_C" in (folder / "maps").read_text():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def _environment() -> dict[str, str]:
    return {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_memory_monitor_refresh_ms": "0"}
