"""The fixtures of the network tests: a cluster over a wire, an input with its local run, a table at the end."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.storage.location import Location
from tests.faults.conftest import REPEATED
from tests.faults.conftest import new_run as new_run
from tests.faults.conftest import say as say
from tests.faults.runs import Corpus, undisturbed
from tests.jobs.runs import prompts, write_jsonl
from tests.network.cluster import NetworkCluster, running_network_cluster
from tests.network.hosts import why_not
from tests.pipeline.stores import CREDENTIALS, running_s3_server, s3_uri


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let each test run several times."""
    parser.addoption("--repeat", type=int, default=1, help="how often each test runs")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make each test as many as `--repeat` says."""
    count = metafunc.config.getoption("--repeat", 1)
    metafunc.fixturenames.append("turn")
    metafunc.parametrize("turn", range(count), ids=lambda turn: f"{turn + 1} of {count}")


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[NetworkCluster]:
    """Run a cluster as long as the tests run."""
    if (why := why_not()) is not None:
        pytest.skip(f"no network of our own: {why}")
    with running_network_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(session_cluster: NetworkCluster) -> NetworkCluster:
    """Return the cluster with all its hosts, whatever the test before did to it."""
    session_cluster.mend()
    return session_cluster


@pytest.fixture(scope="session")
def corpus(text_pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Return 72 rows in 36 units, some of which fail, with the result of a local run over them."""
    rows: list[Any] = prompts(72)
    for index in range(5, 72, 18):
        rows[index] = {"id": f"bad-{index}", "kind": "a"}
    folder = tmp_path_factory.mktemp("local")
    return undisturbed(write_jsonl(folder / "in.jsonl", rows), folder / "out", text_pair, pool=("--run.local",))


@pytest.fixture(scope="session")
def s3_server(session_cluster: NetworkCluster) -> Iterator[str]:
    """The host:port of an S3 server that is on the wire, beside the hosts."""
    with pytest.MonkeyPatch.context() as patch, running_s3_server(session_cluster.network.own_address) as server:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture
def bucket(s3_server: str, tmp_path: Path) -> str:
    """The URI of a new folder in that server."""
    uri = s3_uri(s3_server, f"bucket/{tmp_path.name}")
    Location.parse(uri).make_folder()
    return uri


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a line for each test: how often it passed, how long it took, and what was repeated each time."""
    reports = [report for name in ("passed", "failed") for report in terminalreporter.getreports(name)]
    turns = defaultdict(list)
    for report in reports:
        if report.when == "call":
            turns[re.sub(r"\[?\d+ of \d+[-\]]", "[", report.nodeid.partition("::")[2]).rstrip("[")].append(report)
    if turns:
        terminalreporter.section("how often each test passed, how long it took, and what its fault cost")
    for name, of_test in turns.items():
        passed, seconds = sum(report.passed for report in of_test), [f"{report.duration:.0f}" for report in of_test]
        costs = [text for report in of_test for key, text in report.user_properties if key == REPEATED]
        terminalreporter.write_line(f"{passed} of {len(of_test)}  {name}: {', '.join(seconds)} s; {'; '.join(costs)}")
