"""Which cluster a command joins or starts, and one that cannot be joined or started is told in one line."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import ray
from ray._private import services

from jobs.driver import cluster
from jobs.driver.cluster import find_cluster, start_ray, starts_own_ray
from tests.jobs.runs import wait_until


@pytest.fixture(autouse=True)
def _no_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither does it count whether Ray runs in this process: it takes 127.0.0.1 for the address of its node then."""
    monkeypatch.setattr(services, "get_node_ip_address", lambda address=None: "127.0.0.1")
    monkeypatch.setattr(cluster, "keep_ray_on_loopback", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "_BETWEEN_TRIES_S", 0.0)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


@pytest.fixture
def answering() -> Iterator[str]:
    """An address at which something answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def silent() -> str:
    """An address at which nothing answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("is_joined", "message"),
    [(False, "^cannot start Ray on this machine .*timed out.*; if the"), (True, "^cannot join .* at [0-9.:]+ .*timed")],
)
def test_a_start_that_takes_ray_too_long_is_told_in_one_line(monkeypatch, answering, is_joined, message):
    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup.\nThis could happen")  # as ray/_private/node.py does

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ConnectionError, match=message) as caught:
        start_ray(answering if is_joined else "local")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_does_not_answer_is_refused_at_once(monkeypatch, silent, scheme):
    said = f"cannot join the Ray cluster at {scheme}{silent}: nothing answers .*RAY_ADDRESS"
    with pytest.raises(ConnectionError, match=said):
        start_ray(scheme + silent)
    monkeypatch.setenv("RAY_ADDRESS", scheme + silent)
    with pytest.raises(ConnectionError, match=said):
        find_cluster(None)


def test_a_plan_for_a_named_cluster_asks_nothing_of_it(monkeypatch, silent):
    assert not starts_own_ray(silent)
    monkeypatch.setenv("RAY_ADDRESS", silent)
    assert not starts_own_ray(None)


def test_a_proxy_that_answers_is_joined_by_its_own_address(answering):
    assert find_cluster(f"ray://{answering}") == f"ray://{answering}"


@pytest.mark.parametrize("address", ["nonsense", "::1:6379", "http://127.0.0.1:8265", "127.0.0.1:port", "ray://head"])
def test_an_address_at_which_no_cluster_can_be_is_refused(address):
    with pytest.raises(ConnectionError, match=f"cannot join the Ray cluster at {address}.* check the "):
        find_cluster(address)


def test_local_starts_a_cluster_of_its_own_whatever_names_it(monkeypatch):
    assert starts_own_ray("local")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert starts_own_ray(None)


def test_a_cluster_of_this_machine_is_joined_unasked_only_if_it_still_runs(monkeypatch, answering, silent):
    monkeypatch.setattr(cluster, "cluster_address", lambda given: answering)
    assert find_cluster(None) == answering
    monkeypatch.setattr(cluster, "cluster_address", lambda given: silent)
    assert find_cluster(None) is None


@contextmanager
def started_by_hand(folder: str) -> Iterator[None]:
    """A cluster that `ray start` has started, as any user of the machine may."""
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--port=0", "--num-cpus=3", "--block"]
    options = ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}"]
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: Path(folder, "ray_current_cluster").exists())
            yield
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)


_TELL = "from jobs.driver.cluster import cluster_in_words, start_ray; start_ray(None); print(cluster_in_words(None))"


@pytest.mark.ray
@pytest.mark.slow
def test_words_say_whether_ray_was_started_or_joined():
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder, started_by_hand(folder):  # a short path
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        environment["RAY_TMPDIR"] = folder

        def said(**more: str) -> str:
            command = [sys.executable, "-c", _TELL]
            return subprocess.run(command, env=environment | more, capture_output=True, text=True, check=True).stdout

        assert "Ray joined at" in said()
        assert "`ray start` started it on this machine" in said()
        assert "Ray started on this machine" in said(RAY_ADDRESS="local")
        joined = said(RAY_ADDRESS="auto")
        assert "Ray joined at" in joined
        assert "3 CPUs" in joined
        assert "`ray start`" not in joined
