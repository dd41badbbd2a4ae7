"""Peers: other systems, each in a worker process of its own environment that stays loaded for the whole run.

`make peers` builds the environments. A worker reads a JSON line from its standard input and answers with one: token
ids in, token ids and seconds out. Its own messages go to standard error, into a log file.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.decoder.configurations import Configuration, System
from benchmarks.decoder.options import BenchOptions
from benchmarks.decoder.runners import Repeat, Runner, WarmUp


class PeerError(Exception):
    """A peer could not do what it was asked; the first line says so in short."""


class Worker:
    """A peer's process."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        """Start it; it answers once it has loaded its models."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            env=os.environ | environment,
        )

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the worker's answer; raise PeerError if it died."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "it was started with pipes"
        assert stdout is not None, "it was started with pipes"
        with suppress(BrokenPipeError):  # a worker that is gone gives no answer
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
        line = stdout.readline()
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-5:])
            raise PeerError(f"its process ended ({self._process.wait()}), see {self._log}\n{tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        try:
            self._process.communicate(timeout=20)  # closes its standard input
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


@dataclass
class Peers:
    """The workers of a run, started when first asked for."""

    options: BenchOptions
    pair: Path
    threads: int
    versions: dict[str, str] = field(default_factory=dict)
    _workers: dict[str, Worker] = field(default_factory=dict, init=False)

    def close(self) -> None:
        for worker in self._workers.values():
            worker.stop()

    def worker(self, configuration: Configuration, max_model_len: int) -> Worker:
        """Return the worker that generates like this; it serves every batch size.

        Raise PeerError if the system cannot be measured here.
        """
        if self.options.device == "cuda":
            raise PeerError("measured on CPU only")
        if self.options.temperature:
            raise PeerError("measured greedily only")
        if configuration.system == "llamacpp" and self.options.file is None:
            raise PeerError("it reads GGUF files only (--pair FILE.gguf)")
        if not self._python(configuration.system).exists():
            raise PeerError("not installed (make peers)")
        if configuration.name not in self._workers:
            script = Path(__file__).parent / "peer_workers" / f"{configuration.system}_worker.py"
            worker = Worker(
                [str(self._python(configuration.system)), str(script)],
                {"OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1"},
                self.options.cache / "logs" / f"{configuration.name}.log",
            )
            self._workers[configuration.name] = worker
            answer = worker.ask(
                {
                    "target": str(self.pair / "target"),
                    "draft": str(self.pair / "draft"),
                    "cache": str(self.options.cache / "converted" / f"{self.pair.parent.name}-{self.pair.name}"),
                    "file": str(self.options.file),
                    "mode": configuration.mode,
                    "num_draft_tokens": configuration.num_draft_tokens,
                    "dtype": self.options.dtype,
                    "threads": self.threads,
                    "max_batch": max(self.options.batches),
                    "max_model_len": max_model_len,
                }
            )
            self.versions |= answer["versions"]
        return self._workers[configuration.name]

    def _python(self, system: System) -> Path:
        return self.options.peers.absolute() / f".venv-{system}" / "bin" / "python"


@dataclass
class PeerRunner(Runner):
    """One configuration of a peer at one batch size."""

    peers: Peers

    def warm_up(self) -> WarmUp:
        """Start the worker if need be, and generate once."""
        outputs: list[list[int]] = self._ask()["token_ids"]
        short = [len(row) for row in outputs if len(row) != self.corpus.new_tokens]
        if short:
            raise PeerError(f"it wrote rows of {short} tokens instead of {self.corpus.new_tokens}")
        return self.shown(outputs)

    def repeat(self) -> Repeat:
        """Generate once, timed by the worker's own clock."""
        return Repeat(seconds=float(self._ask()["seconds"]))

    def _ask(self) -> dict[str, Any]:
        return self.peers.worker(self.configuration, self.corpus.max_model_len).ask(
            {"batch": self.batch, "prompts": self.corpus.rows(self.num_rows), "new_tokens": self.corpus.new_tokens}
        )
