"""Strikes: faults that a test does to a run from outside, at random moments of its diary."""

import os
import random
import signal
from collections import Counter, defaultdict

from tests.faults.diary import is_alive
from tests.faults.runs import PATIENCE_S, Driver, FaultRun
from tests.jobs.runs import wait_until

_MOST_ENTRIES_BETWEEN = 10
# A row is given up when two processes died over it while it ran alone, which takes five deaths over its unit. Chance
# must not condemn a row that is innocent.
_MOST_DEATHS_OVER_A_UNIT = 3


def kill_random_workers(run: FaultRun, driver: Driver, seed: int, num_kills: int) -> int:
    """Kill processes that load models or run units, one after the other; return how many units were in flight."""
    rng, deaths = random.Random(seed), Counter[int]()
    for _ in range(num_kills):
        num_entries = len(run.diary.entries()) + rng.randint(1, _MOST_ENTRIES_BETWEEN)

        def victims(num_entries: int = num_entries) -> list[int]:
            return _victims(run, deaths) if len(run.diary.entries()) >= num_entries else []

        victim = rng.choice(driver.wait_until(victims))
        deaths.update(run.diary.in_flight().get(victim, set()))
        kill(victim)
    return deaths.total()


def kill(pid: int) -> None:
    """Kill a process and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), PATIENCE_S)


def wait_for_work(run: FaultRun, driver: Driver, node: str | None = None) -> tuple[str, set[int]]:
    """Wait until a node (this one, if given) has processes with units in flight; return the node and the processes."""

    def at_work() -> dict[str, set[int]]:
        nodes: dict[str, set[int]] = defaultdict(set)
        processes = run.diary.processes()
        for pid in run.diary.in_flight():
            if pid in processes and node in (None, processes[pid]):
                nodes[processes[pid]].add(pid)
        return nodes

    return next(iter(driver.wait_until(at_work).items()))


def _victims(run: FaultRun, deaths: Counter[int]) -> list[int]:
    spared = {unit for unit, num_deaths in deaths.items() if num_deaths >= _MOST_DEATHS_OVER_A_UNIT}
    at_work = {pid for pid, units in run.diary.in_flight().items() if not units & spared}
    return sorted(at_work | run.diary.loading())
