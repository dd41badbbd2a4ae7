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
from types import TracebackType
from typing import IO, Any

from benchmarks.decoder.configurations import Configuration, System
from benchmarks.decoder.corpus import Corpus
from benchmarks.decoder.options import BenchOptions
from benchmarks.decoder.recorder import RawSeconds
from benchmarks.decoder.results import Result

_WORKERS = Path(__file__).parent / "peer_workers"


class PeerError(Exception):
    """A peer could not do what it was asked; the first line says so in short."""


class Worker:
    """A peer's process."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        """Start it; it answers once it has loaded its models."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            env=dict(os.environ) | dict(environment),
        )

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the worker's answer; raise PeerError if it died."""
        stdin, stdout = self._pipes
        with suppress(BrokenPipeError):  # a worker that is gone gives no answer
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
        line = stdout.readline()
        if not line:
            raise PeerError(f"its process ended ({self._process.wait()}), see {self._log}\n{self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End the process."""
        stdin, _ = self._pipes
        stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def _pipes(self) -> tuple[IO[str], IO[str]]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "it was started with pipes"
        assert stdout is not None, "it was started with pipes"
        return stdin, stdout

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-5:])


@dataclass
class Peers:
    """The workers of a run, started when first asked for."""

    options: BenchOptions
    pair: Path
    threads: int
    versions: dict[str, str] = field(default_factory=dict)
    _workers: dict[str, Worker] = field(default_factory=dict, init=False)

    def __enter__(self) -> "Peers":
        """Return the peers, of which none runs yet."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.stop()

    def missing(self, system: System) -> str | None:
        """Return why a system cannot be measured here, or None if it can."""
        if system in ("engine", "transformers"):
            return None
        if self.options.device == "cuda":
            return "measured on CPU only"
        if self.options.temperature:
            return "measured greedily only"
        return None if self._python(system).exists() else "not installed (make peers)"

    def worker(self, configuration: Configuration, max_model_len: int) -> Worker:
        """Return the worker that generates like this; it serves every batch size."""
        if configuration.name not in self._workers:
            script = _WORKERS / f"{configuration.system}_worker.py"
            environment = {"OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1"}
            worker = Worker(
                [str(self._python(configuration.system)), str(script)],
                environment,
                self.options.cache / "logs" / f"{configuration.name}.log",
            )
            self._workers[configuration.name] = worker
            answer = worker.ask(
                {
                    "target": str(self.pair / "target"),
                    "draft": str(self.pair / "draft"),
                    "cache": str(self.options.cache / "converted" / f"{self.pair.parent.name}-{self.pair.name}"),
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
class PeerRunner:
    """One configuration of a peer at one batch size."""

    configuration: Configuration
    batch: int
    corpus: Corpus
    num_rows: int
    peers: Peers

    def warm_up(self) -> tuple[Result, list[list[int]]]:
        """Start the worker if need be, and generate once."""
        answer = self._ask()
        outputs: list[list[int]] = answer["token_ids"]
        short = [len(row) for row in outputs if len(row) != self.corpus.new_tokens]
        if short:
            raise PeerError(f"it wrote rows of {short} tokens instead of {self.corpus.new_tokens}")
        result = Result(
            name=self.configuration.name,
            batch=self.batch,
            num_rows=self.num_rows,
            num_output_tokens=sum(map(len, outputs)),
            seconds=(),
            num_rounds=answer.get("num_rounds", 0),
        )
        return result, outputs

    def repeat(self) -> tuple[float, RawSeconds | None]:
        """Return the seconds by the worker's own clock."""
        return float(self._ask()["seconds"]), None

    def _ask(self) -> dict[str, Any]:
        return self.peers.worker(self.configuration, self.corpus.max_model_len).ask(
            {
                "batch": self.batch,
                "prompts": self.corpus.rows(self.num_rows),
                "new_tokens": self.corpus.new_tokens,
            }
        )
