"""A small run of a test: its input, its run directory, its commands and what they print."""

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from decoding.sampling import rules
from jobs import generate, retry
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.plan import create_run, make_plan
from tests.jobs.runs import arguments, prompts, write_jsonl


@dataclass
class Job:
    """A run in a folder of its own, which nothing has begun yet."""

    folder: Path
    pair: tuple[str, str]  # target and draft
    capsys: pytest.CaptureFixture[str]
    is_local: bool = False  # whether its commands work without Ray

    def __post_init__(self) -> None:
        self.source, self.output = self.folder / "in.jsonl", self.folder / "out"

    def read(self, rows: list[Any] | int) -> None:
        """Write the input: these rows, or a number of good ones."""
        write_jsonl(self.source, prompts(rows) if isinstance(rows, int) else rows)

    def command(self, *flags: str) -> list[str]:
        """Return the command line with these flags."""
        return arguments(self.source, self.output, self.pair, *flags, *self._where)

    @property
    def _where(self) -> tuple[str, ...]:
        return ("--run.local",) if self.is_local else ()

    def begin(self, *flags: str) -> None:
        """Leave the run as a driver does that ended before its first unit."""
        create_run(make_plan(load(RunConfig, self.command(*flags), prog="test")))

    def generate(self, *flags: str) -> int:
        """Generate the corpus, and return the exit code."""
        return generate.main(self.command(*flags))

    def start(self, ray_address: str, *flags: str) -> subprocess.Popen[str]:
        """Begin to generate in a process of its own."""
        words = [sys.executable, "-m", "jobs.generate", *self.command(*flags), f"--run.ray_address={ray_address}"]
        return subprocess.Popen(words, stderr=subprocess.PIPE, text=True)

    def retry(self, *flags: str) -> int:
        """Try its failed rows again, and return the exit code."""
        return retry.main(self.command(*flags))

    def undisturbed(self, *flags: str) -> Path:
        """Return another run over the input, in which nothing happens."""
        output = self.folder / "undisturbed"
        assert generate.main(arguments(self.source, output, self.pair, *flags, *self._where)) == 0
        return output

    def printed(self) -> str:
        """Return what was printed since the last call, to stdout and then to stderr."""
        return "".join(self.capsys.readouterr())


@pytest.fixture
def job(tmp_path: Path, text_pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> Job:
    """Return a run to be made, in an empty folder."""
    return Job(tmp_path, text_pair, capsys)


@pytest.fixture
def local(job: Job, request: pytest.FixtureRequest) -> None:
    """Let the run's commands do their work in this process, without Ray, unless the test is one that needs Ray."""
    job.is_local = request.node.get_closest_marker("ray") is None


@pytest.fixture
def lenient_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the verifier accept the first drafted token of every row, whatever it is."""
    real = rules.verify_coupled

    def lenient(picks, draft, sampling, close_call=0.0):  # type: ignore[no-untyped-def]
        verdict = real(picks, draft, sampling, close_call)
        accepted = torch.maximum(verdict.num_accepted_B, draft.num_draft_tokens_B.clamp(max=1))
        return replace(verdict, num_accepted_B=accepted)

    monkeypatch.setattr(rules, "verify_coupled", lenient)
