"""Runs of the real command on a cluster, and the five statements that must hold after any fault."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from jobs import generate
from jobs.driver.stopping import Exit
from pipeline.run.check import check_run
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import content_hash
from pipeline.storage.location import Location
from tests.faults.cluster import ROOT, RayCluster
from tests.faults.diary import Diary
from tests.jobs.runs import Found, arguments, wait_until

Pair = tuple[str, str]
Say = Callable[[str], None]  # writes a line into the table at the end of the tests
UNITS_IN_FLIGHT = 2  # of each actor
NUM_ACTORS = 2
PATIENCE_S = 240.0  # of a wait on a busy machine; nothing takes so long when all is well

_SUMMARY = ("worker processes died over units", "attempts were repeated", "rows were given up")
_POOL = (
    f"--actors.min_actors={NUM_ACTORS}",
    f"--actors.max_actors={NUM_ACTORS}",
    f"--actors.units_in_flight={UNITS_IN_FLIGHT}",
    "--no-run.backup_units",  # backups of slow units are no work repeated by a fault
)
_OF_UNITS = ("--models.device=cpu", "--run.rows_per_unit=2")
FLAGS = (*_OF_UNITS, *_POOL)


@dataclass(frozen=True)
class Corpus:
    """An input, and what comes out of it when nothing goes wrong."""

    source: str
    num_units: int
    generations: str  # the content hash
    errors: list[tuple[Any, ...]]


class Driver:
    """A running `python -m jobs.generate` whose words go to a file."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        """Start the command."""
        self.log = log
        with open(log, "w") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT, env=environment)

    @property
    def has_ended(self) -> bool:
        """Tell whether the command has ended."""
        return self.process.poll() is not None

    def said(self) -> str:
        """Return what the command has written to stdout and stderr."""
        return self.log.read_text()

    def wait(self, *exit_codes: int) -> None:
        """Wait until the command has ended, and assert that it did so with one of these exit codes."""
        code = self.process.wait(2 * PATIENCE_S)
        assert code in exit_codes, f"exit code {code}, expected {exit_codes}: {self.said()[-4000:]}"

    def kill(self) -> None:
        """Kill the command, which must not have ended before."""
        self.refuse_ended()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def wait_until(self, is_time: Callable[[], Found], every_s: float = 0.02) -> Found:
        """Wait until it is time to disturb the command, which must not have ended before; return what was found."""
        found = wait_until(lambda: (seen,) if (seen := is_time()) or self.has_ended else (), PATIENCE_S, every_s)
        self.refuse_ended()
        return found[0]

    def refuse_ended(self) -> None:
        """Assert that the command still runs: the test would disturb nothing otherwise."""
        assert not self.has_ended, f"the driver ended before it could be disturbed: {self.said()[-4000:]}"

    def summary(self) -> tuple[int, int, int]:
        """Return the deaths, repeated attempts and rows given up that the command printed at its end, or zeros."""
        found = [re.search(rf"(\d+) {words}", self.said()) for words in _SUMMARY]
        deaths, repeated, given_up = (int(match[1]) if match else 0 for match in found)
        return deaths, repeated, given_up


@dataclass
class FaultRun:
    """One run directory, the command that fills it, and the diary of its workers."""

    cluster: RayCluster
    corpus: Corpus
    pair: Pair
    folder: Path
    output: str
    flags: tuple[str, ...] = ()
    drivers: list[Driver] = field(default_factory=list)

    @property
    def arguments(self) -> list[str]:
        """Return the command line."""
        flags = [flag for flag in FLAGS if flag.replace("--no-", "--") not in self.flags]
        return arguments(self.corpus.source, self.output, self.pair, *flags, *self.flags)

    @property
    def diary(self) -> Diary:
        """Return the diary of the workers of all drivers."""
        return Diary(self.folder / "diary")

    @property
    def directory(self) -> RunDirectory:
        """Return the opened run directory."""
        return RunDirectory.open(self.output)

    def command(self, generator: str = "paced", **options: Any) -> list[str]:
        """Return the command of a driver with one of `generators`."""
        options = {"diary": str(self.diary.path), **options}
        command = [sys.executable, "-m", "tests.faults.driver", generator, json.dumps(options), *self.arguments]
        return [*command, f"--run.ray_address={self.cluster.address}"]

    def start(self, generator: str = "paced", **options: Any) -> Driver:
        """Start a driver with one of `generators` and return it."""
        command = self.cluster.driver_command(self.command(generator, **options))
        log = self.folder / f"driver-{len(self.drivers)}.log"
        self.drivers.append(Driver(command, self.cluster.environment, log))
        return self.drivers[-1]

    def end(self) -> None:
        """Kill all drivers, whether the test passed or failed."""
        for driver in self.drivers:
            driver.process.kill()
            driver.process.wait(60)

    def wait_for_commits(self, count: int, driver: Driver) -> None:
        """Wait until `count` units are committed, before the driver ends."""
        driver.wait_until(lambda: len(self.commits()) >= count)

    def commits(self) -> dict[str, tuple[int, int]]:
        """Return the size and time of change of each part; they differ if a part was written again."""
        data = Location.parse(self.output).child("data")
        return {info.base_name: (info.size, info.mtime_ns) for info in data.list()}

    def prove_nothing_lost(self, at_most_repeated: int) -> str:
        """Assert the five statements, and return a sentence on how much work was repeated."""
        run_directory = self.directory
        assert content_hash(run_directory) == self.corpus.generations
        assert read_errors(run_directory) == self.corpus.errors
        keys = read_columns(run_directory, "data", "row_id", "sample")
        failed = [row[0] for row in self.corpus.errors]
        assert len(keys) == len(set(keys)), "a sample is there twice"
        report = check_run(run_directory)
        assert report.problems == []
        assert len({row_id for row_id, _ in keys} | set(failed)) == run_directory.manifest.num_rows
        self.prove_nothing_left()
        repeated = sum(attempts - 1 for attempts in self.diary.num_attempts().values())
        summary = [driver.summary() for driver in self.drivers]
        assert sum(of_driver[1] for of_driver in summary) <= at_most_repeated, summary
        assert repeated <= at_most_repeated, self.diary.num_attempts()
        return f"{repeated} of {self.corpus.num_units} units repeated, at most {at_most_repeated} allowed"

    def prove_nothing_left(self) -> None:
        """Assert that another run generates nothing."""
        before = self.commits()
        with redirect_stdout(StringIO()) as said:
            assert generate.main(self.arguments) == Exit.COMPLETE
        assert "Nothing left to do" in said.getvalue(), "another run generated something"
        assert self.commits() == before


NewRun = Callable[..., FaultRun]  # flags of the command -> a run that is not begun


def undisturbed(source: Path, output: Path, pair: Pair, *flags: str, pool: tuple[str, ...] = _POOL) -> Corpus:
    """Return an input with the result of a run in this process's own Ray, far from the cluster and its faults.

    With a pool of ("--run.local",) it is that of a run in this process.
    """
    assert generate.main(arguments(source, output, pair, *_OF_UNITS, *pool, *flags)) == Exit.COMPLETE
    directory = RunDirectory.open(str(output))
    return Corpus(str(source), directory.manifest.num_units, content_hash(directory), read_errors(directory))


def read_columns(run_directory: RunDirectory, folder: str, *names: str) -> list[tuple[Any, ...]]:
    """Return these columns of all rows in a folder of the run."""
    files = run_directory.location.child(folder)
    table = ds.dataset(files.path, filesystem=files.filesystem, format="parquet").to_table(columns=list(names))
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def read_errors(run_directory: RunDirectory) -> list[tuple[Any, ...]]:
    """Return the row id, stage and error type of every error row, in order."""
    return sorted(read_columns(run_directory, "errors", "row_id", "stage", "error_type"))


def read_tokens(run_directory: RunDirectory) -> dict[tuple[int, int], tuple[list[int], str]]:
    """Return the tokens and the finish reason of every generation, by row id and sample."""
    rows = read_columns(run_directory, "data", "row_id", "sample", "token_ids", "finish_reason")
    return {(row_id, sample): (token_ids, reason) for row_id, sample, token_ids, reason in rows}
