"""Links, hosts and single nodes that fail in a run over a wire: its corpus is that of a local run."""

import os
import re
from collections.abc import Callable
from signal import SIGCONT, SIGSTOP
from threading import Thread
from time import sleep
from typing import Any

import pytest

from tests.faults.runs import NUM_ACTORS, PATIENCE_S, UNITS_IN_FLIGHT, FaultRun
from tests.faults.strikes import wait_for_work
from tests.jobs.runs import wait_until
from tests.network.hosts import Host
from tests.network.wire import DEVICE

pytestmark = [pytest.mark.network, pytest.mark.timeout(900)]
IN_FLIGHT = UNITS_IN_FLIGHT * NUM_ACTORS

Strike = Callable[[FaultRun, Host], None]  # does something to a host of the run; what stays is mended after the test


def cut(seconds: float) -> Strike:
    """The line loses all frames for a while, and neither end is told."""
    return lambda run, host: run.cluster.network.cut(host, seconds)


def cut_after_the_ledger(run: FaultRun, host: Host) -> None:
    """The line is cut for 20 s, in which connections to the ledger alone end while units wait for it."""
    listening = run.cluster.driver_host.do("ss", "--listening", "--tcp", "--numeric", "--processes", "--no-header")
    port = next(re.search(r":(\d+) ", line)[1] for line in listening.splitlines() if re.search(r"ray::\w*Ledger", line))

    def waits_for_an_answer() -> bool:
        connections = host.do("ss", "--tcp", "--numeric", "--no-header", f"dport = :{port}").splitlines()
        return any(
            int(connection.split()[2]) for connection in connections
        )  # bytes that the ledger has not acknowledged

    run.cluster.network.shape(host, is_cut=True)
    run.drivers[-1].wait_until(waits_for_an_answer, every_s=0.1)
    run.cluster.network.end_connections(host, "and", "(", "sport", "=", f":{port}", "or", "dport", "=", f":{port}", ")")
    cut(20)(run, host)


def card(*state: str) -> Strike:
    """The host's card is in this state for 15 s, such as ("carrier", "off")."""

    def strike(run: FaultRun, host: Host) -> None:
        host.do("ip", "link", "set", DEVICE, *state)
        sleep(15)
        run.cluster.network.mend(host)

    return strike


def line(**fields: float) -> Strike:
    """The line is worse from now on."""
    return lambda run, host: run.cluster.network.shape(host, **fields)


def connections_end(run: FaultRun, host: Host) -> None:
    """All connections of the host end, again and again."""
    for _ in range(5):
        run.cluster.network.end_connections(host)
        run.wait_for_commits(len(run.commits()) + 1, run.drivers[-1])


def read_only(run: FaultRun, host: Host) -> None:
    """The host can no longer write into the output."""
    host.do("mount", "--bind", "--options", "ro", run.output, run.output)


def full(run: FaultRun, host: Host) -> None:
    """What the host writes goes to a disk without room."""
    disk = run.folder / "disk"
    disk.mkdir()
    fill = "mount -t tmpfs -o size=64k tmpfs $1; cat /dev/zero > $1/ballast 2> /dev/null || mount --bind $1 $2"
    host.do("sh", "-c", fill, "fill", str(disk), f"{run.output}/_tmp")


def actors_stop(run: FaultRun, host: Host) -> None:
    """The actors of the host are stopped for a while, and go on."""
    actors = run.diary.in_flight().keys() & host.processes()
    assert actors, "none is at work there"
    for number, seconds in ((SIGSTOP, 15), (SIGCONT, 0)):
        for actor in actors:
            os.kill(actor, number)
        sleep(seconds)


def freezes(run: FaultRun, host: Host) -> None:
    """All processes of the host stop until the cluster counts the node as dead, its connections end; then it wakes."""
    host.signal(SIGSTOP)
    run.cluster.network.end_connections(host)
    wait_until(lambda: host.address not in run.cluster.nodes().values(), PATIENCE_S, 0.5)
    host.signal(SIGCONT)


def is_slow(run: FaultRun, host: Host) -> None:
    """The host computes for a tenth of the time, as long as the driver runs."""

    def take_turns() -> None:
        while not run.drivers[-1].has_ended:
            for number, seconds in ((SIGSTOP, 0.9), (SIGCONT, 0.1)):
                host.signal(number)
                sleep(seconds)

    Thread(target=take_turns).start()


def vanishes(run: FaultRun, host: Host) -> None:
    """The host is gone for good."""
    run.cluster.vanish(host)


def cases(
    name: str,
    strike: Strike,
    whose: str = "worker",
    on: str = "folder",
    repeated: int = IN_FLIGHT,
    code: int = 0,
    short: bool = False,
) -> list[Any]:
    """Return a case for each kind of output in `on`, with the driver's exit code; CI runs those that are short."""
    marks = [] if short else [pytest.mark.slow]
    names = {output: f"{name}, {whose}, {output}" for output in on.split()}
    return [pytest.param(strike, whose, output, repeated, code, id=names[output], marks=marks) for output in names]


FAULTS = [
    *cases("the card is down for 15 s", card("down"), "head", short=True),
    *cases("the card is down for 15 s", card("down")),
    *cases("no carrier for 15 s", card("carrier", "off"), on="S3"),
    *cases("no carrier for 15 s", card("carrier", "off"), "desk"),
    *cases("5 % of the frames are dropped", line(loss=0.05), on="folder S3", repeated=0),
    *cases("connections end", connections_end, on="S3", short=True),
    *cases("connections end", connections_end, "head"),
    *cases("a cut of 20 s in which the ledger's connection ends", cut_after_the_ledger),
    *cases("10 ms of delay", line(delay_s=0.01), "head", on="folder S3", repeated=0),
    *cases("50 ms of delay", line(delay_s=0.05), "head", repeated=0),
    *cases("2 Mbit/s", line(bytes_per_s=250_000), on="folder S3", repeated=0),
    *cases("a cut of 20 s", cut(20), on="S3"),
    *cases("a cut of 20 s", cut(20), "head"),
    *cases("a cut of 20 s", cut(20), "desk"),
    *cases("a cut of 90 s", cut(90), on="folder S3"),
    *cases("a cut of 90 s", cut(90), "head"),
    *cases("a cut of 90 s", cut(90), "desk", code=1),  # Ray ends a driver whose node counts as dead
    *cases("the output is read-only", read_only, short=True),
    *cases("the disk is full", full),
    *cases("actors stop for 15 s", actors_stop, repeated=0),
    *cases("a frozen host wakes", freezes, on="folder S3"),
    *cases("a slow host", is_slow),
    *cases("the host is gone", vanishes),
]


@pytest.mark.parametrize(("strike", "whose", "output", "repeated", "code"), FAULTS)
def test_a_fault_changes_nothing(strike, whose, output, repeated, code, cluster, new_run, request, say):
    run = new_run(output=request.getfixturevalue("bucket") if output == "S3" else None)
    if whose == "desk":
        run.cluster = cluster.driven_from(cluster.desk)
    driver = run.start(pause_s=1.0)
    run.wait_for_commits(3, driver)
    _, at_work = wait_for_work(run, driver)
    strike(run, {"head": cluster.head, "desk": cluster.desk}.get(whose) or cluster.host_of(at_work.pop()))
    driver.wait(code)
    if strike in (read_only, full):
        assert "a place that failed" in driver.said(), "the fault did not strike"
    if code:
        cluster.mend()
        run.start().wait(0)
    say(run.prove_nothing_lost(repeated))
