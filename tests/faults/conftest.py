"""The fixtures of the fault tests: a cluster of three raylets, an input with its undisturbed run, a final table."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.actors.conftest import one_thread as one_thread
from tests.actors.conftest import pair as pair
from tests.faults.cluster import RayCluster, running_cluster
from tests.faults.runs import Corpus, FaultRun, NewRun, Say, undisturbed
from tests.jobs.runs import prompts, write_jsonl

Pair = tuple[str, str]
REPEATED = "what was repeated"


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[RayCluster]:
    """Run a cluster as long as the tests run."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(session_cluster: RayCluster) -> RayCluster:
    """Return the cluster with a head and two nodes that work, whatever the test before did to it."""
    session_cluster.grow_to(2)
    return session_cluster


@pytest.fixture(scope="session")
def corpus(ray_address: str, text_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Return 72 rows in 36 units, some of which fail, with the result of an undisturbed run over them."""
    rows: list[Any] = prompts(72)
    for index in range(5, 72, 18):
        rows[index] = {"id": f"bad-{index}", "kind": "a"}
    folder = tmp_path_factory.mktemp("undisturbed")
    return undisturbed(write_jsonl(folder / "in.jsonl", rows), folder / "out", text_pair)


@pytest.fixture
def new_run(cluster: RayCluster, corpus: Corpus, text_pair: Pair, tmp_path: Path) -> Iterator[NewRun]:
    """Return a function that makes runs over that input and does not start them. No driver outlives the test."""
    runs: list[FaultRun] = []

    def make(*flags: str, output: str | None = None, over: Corpus = corpus) -> FaultRun:
        runs.append(FaultRun(cluster, over, text_pair, tmp_path, output or str(tmp_path / "out"), flags))
        return runs[-1]

    yield make
    for run in runs:
        run.end()


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Say:
    """Return a function that writes a line into the table at the end of the tests."""
    return lambda text: record_property(REPEATED, text)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a line for each fault that says what was repeated."""
    reports = [report for name in ("passed", "failed") for report in terminalreporter.getreports(name)]
    lines = [
        f"{report.nodeid.rpartition('::')[2]}: {text}"
        for report in reports
        for name, text in report.user_properties
        if name == REPEATED and report.when == "call"
    ]
    if lines:
        terminalreporter.section("what the faults cost")
        for line in lines:
            terminalreporter.write_line(line)
