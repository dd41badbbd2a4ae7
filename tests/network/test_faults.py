"""Links, hosts and single nodes that fail in a run over a wire: its corpus is that of a local run."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from signal import SIGCONT, SIGSTOP
from threading import Event, Thread
from time import sleep
from typing import Any

import pytest

from tests.faults.runs import NUM_ACTORS, PATIENCE_S, UNITS_IN_FLIGHT, FaultRun
from tests.faults.strikes import wait_for_work
from tests.jobs.runs import wait_until
from tests.network.hosts import Host
from tests.network.wire import DEVICE

pytestmark = [pytest.mark.network, pytest.mark.timeout(900)]
LONG = pytest.mark.slow  # not in CI's short form
IN_FLIGHT = UNITS_IN_FLIGHT * NUM_ACTORS

Strike = Callable[[FaultRun, Host], AbstractContextManager[None]]  # does something to a host of the run


def lost(seconds: float) -> Strike:
    """The line loses all frames for a while, and neither end is told."""

    @contextmanager
    def strike(run: FaultRun, host: Host) -> Iterator[None]:
        run.cluster.network.shape(host, is_cut=True)
        sleep(seconds)
        run.cluster.network.mend(host)
        yield

    return strike


@contextmanager
def lost_after_the_ledger(run: FaultRun, host: Host) -> Iterator[None]:
    """The line is cut for 20 s, in which connections to the ledger alone end while units wait for it."""
    network = run.cluster.network
    listening = run.cluster.driver_host.do("ss", "--listening", "--tcp", "--numeric", "--processes", "--no-header")
    port = next(re.search(r":(\d+) ", line)[1] for line in listening.splitlines() if re.search(r"ray::\w*Ledger", line))
    committed = _num_committed(run, host)
    network.shape(host, is_cut=True)
    run.drivers[-1].wait_until(lambda: _num_committed(run, host) > committed, every_s=0.1)
    network.end_connections(host, "and", "(", "sport", "=", f":{port}", "or", "dport", "=", f":{port}", ")")
    sleep(20)
    network.mend(host)
    yield


def _num_committed(run: FaultRun, host: Host) -> int:
    processes = host.processes()
    return sum(entry.what == "committed" and entry.pid in processes for entry in run.diary.entries())


def card(*state: str, seconds: float) -> Strike:
    """The host's card is in this state for a while, such as ("carrier", "off")."""

    @contextmanager
    def strike(run: FaultRun, host: Host) -> Iterator[None]:
        host.do("ip", "link", "set", DEVICE, *state)
        sleep(seconds)
        run.cluster.network.mend(host)
        yield

    return strike


def line(**fields: float) -> Strike:
    """The line is worse from now on."""

    @contextmanager
    def strike(run: FaultRun, host: Host) -> Iterator[None]:
        run.cluster.network.shape(host, **fields)
        yield

    return strike


@contextmanager
def connections_end(run: FaultRun, host: Host) -> Iterator[None]:
    """All connections of the host end, again and again."""
    for _ in range(5):
        run.cluster.network.end_connections(host)
        run.wait_for_commits(len(run.commits()) + 1, run.drivers[-1])
    yield


@contextmanager
def read_only(run: FaultRun, host: Host) -> Iterator[None]:
    """The host can no longer write into the output."""
    host.do("mount", "--bind", "--options", "ro", run.output, run.output)
    yield
    host.do("umount", "--lazy", run.output)


@contextmanager
def full(run: FaultRun, host: Host) -> Iterator[None]:
    """What the host writes goes to a disk without room."""
    scratch, disk = f"{run.output}/_tmp", run.folder / "disk"
    disk.mkdir()
    fill = "mount -t tmpfs -o size=64k tmpfs $1; cat /dev/zero > $1/ballast 2> /dev/null || mount --bind $1 $2"
    host.do("sh", "-c", fill, "fill", str(disk), scratch)
    yield
    host.do("umount", "--lazy", scratch, str(disk))


@contextmanager
def actors_stop(run: FaultRun, host: Host) -> Iterator[None]:
    """The actors of the host are stopped for a while, and go on."""
    actors = [process for process in run.diary.in_flight() if process in host.processes()]
    for number in (SIGSTOP, SIGCONT):
        for actor in actors:
            os.kill(actor, number)
        sleep(15 if number == SIGSTOP else 0)
    yield


@contextmanager
def freezes(run: FaultRun, host: Host) -> Iterator[None]:
    """All processes of the host stop until the cluster counts the node as dead, its connections end; then it wakes."""
    host.signal(SIGSTOP)
    run.cluster.network.end_connections(host)
    wait_until(lambda: host.address not in run.cluster.nodes().values(), PATIENCE_S, 0.5)
    host.signal(SIGCONT)
    yield


@contextmanager
def is_slow(run: FaultRun, host: Host) -> Iterator[None]:
    """The host computes for a tenth of the time."""
    ended = Event()

    def take_turns() -> None:
        while not ended.is_set():
            host.signal(SIGSTOP)
            ended.wait(0.9)
            host.signal(SIGCONT)
            ended.wait(0.1)

    thread = Thread(target=take_turns)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def vanishes(run: FaultRun, host: Host) -> Iterator[None]:
    """The host is gone for good."""
    run.cluster.vanish(host)
    yield


@dataclass(frozen=True)
class Fault:
    """What a test does once three units are committed and others are in flight, and to whose host."""

    name: str
    strike: Strike
    whose: str = "worker"
    most_repeated: int = 0  # units; each host of an actor that is lost has up to all that are in flight
    exit_code: int = 0
    on: tuple[str, ...] = ("folder",)

    def cases(self, *marks: pytest.MarkDecorator) -> list[Any]:
        """Return a case for each kind of output."""
        return [
            pytest.param(self, output, id=f"{self.name}, {self.whose}, {output}", marks=marks) for output in self.on
        ]


BOTH = ("folder", "S3")
FAULTS = [
    *Fault("the card is down for 15 s", card("down", seconds=15), "head", IN_FLIGHT).cases(),
    *Fault("the card is down for 15 s", card("down", seconds=15), "worker", IN_FLIGHT).cases(LONG),
    *Fault("no carrier for 15 s", card("carrier", "off", seconds=15), "worker", IN_FLIGHT, on=("S3",)).cases(LONG),
    *Fault("no carrier for 15 s", card("carrier", "off", seconds=15), "desk", IN_FLIGHT).cases(LONG),
    *Fault("5 % of the frames are dropped", line(loss=0.05), on=BOTH).cases(LONG),
    *Fault("connections end", connections_end, "worker", IN_FLIGHT, on=("S3",)).cases(),
    *Fault("connections end", connections_end, "head", IN_FLIGHT).cases(LONG),
    *Fault("a cut of 20 s in which connections end", lost_after_the_ledger, "worker", IN_FLIGHT).cases(LONG),
    *Fault("10 ms of delay", line(delay_s=0.01), "head", on=BOTH).cases(LONG),
    *Fault("50 ms of delay", line(delay_s=0.05), "head").cases(LONG),
    *Fault("2 Mbit/s", line(bytes_per_s=250_000), on=BOTH).cases(LONG),
    *Fault("a cut of 20 s", lost(20), "worker", IN_FLIGHT, on=("S3",)).cases(LONG),
    *Fault("a cut of 20 s", lost(20), "head", IN_FLIGHT).cases(LONG),
    *Fault("a cut of 20 s", lost(20), "desk", IN_FLIGHT).cases(LONG),
    *Fault("a cut of 90 s", lost(90), "worker", IN_FLIGHT, on=BOTH).cases(LONG),
    *Fault("a cut of 90 s", lost(90), "head", 2 * IN_FLIGHT).cases(LONG),
    *Fault("a cut of 90 s", lost(90), "desk", IN_FLIGHT).cases(LONG),
    *Fault("the output is read-only", read_only, most_repeated=IN_FLIGHT).cases(),
    *Fault("the disk is full", full, most_repeated=IN_FLIGHT).cases(LONG),
    *Fault("actors stop for 15 s", actors_stop).cases(LONG),
    *Fault("a frozen host wakes", freezes, most_repeated=IN_FLIGHT, on=BOTH).cases(LONG),
    *Fault("a slow host", is_slow, most_repeated=IN_FLIGHT).cases(LONG),
    *Fault("the host is gone", vanishes, most_repeated=IN_FLIGHT).cases(LONG),
]


@pytest.mark.parametrize(("fault", "output"), FAULTS)
def test_a_fault_changes_nothing(fault, output, cluster, new_run, request, corpus, say):
    run = new_run()
    if output == "S3":
        run = new_run(output=request.getfixturevalue("bucket"))
    if fault.whose == "desk":
        run.cluster = cluster.driven_from(cluster.desk)
    driver = run.start(pause_s=1.0)
    run.wait_for_commits(3, driver)
    _, at_work = wait_for_work(run, driver)
    host = {"head": cluster.head, "desk": cluster.desk}.get(fault.whose) or cluster.host_of(at_work.pop())
    with fault.strike(run, host):
        driver.wait(fault.exit_code)
    if fault.exit_code:
        cluster.mend()
        run.start().wait(0)
    say(run.prove_nothing_lost(fault.most_repeated))
