"""Three minutes of load with clients that leave and requests that are refused: no process grows."""

import asyncio
import itertools
import random
import sys
import time
from collections.abc import Mapping
from statistics import mean

import httpx2
import psutil
import pytest

from endpoint.gate.gate import INGRESS_NAME
from tests.endpoint.asking import Asked, all_over
from tests.endpoint.on_serve.application import CAPACITY, LONG, pids, replica_pids

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
_SECONDS, _EVERY_S, _BURST_EVERY_S = 180, 1.0, 5.0
_NUM_TEXTS, _NUM_STEADY, _NUM_LEAVING = 16, 4, 2
_MOST_GROWTH = {"memory": 16 * 2**20, "descriptors": 8, "threads": 4}  # from the second minute to the third
Sample = dict[str, float]  # the resources of one process at one moment, in bytes and numbers, and the "seconds"


class Load:
    """Everything that clients do, until the time is over."""

    def __init__(self, client: httpx2.AsyncClient, texts: Mapping[int, str]) -> None:
        self.num_answered = self.num_refused = self.num_left = 0
        self._client, self._texts = client, texts
        self._ends_at = time.monotonic() + _SECONDS
        self._moments = random.Random(0)
        self._steady: Asked | None = None

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._ends_at

    async def keep_asking(self, first: int) -> None:
        for number in itertools.count(first):
            if self.is_over:
                return
            self._steady = asked = self._ask(number)
            await asked.end()
            self._check(asked)
            if asked.status == 429:
                await asyncio.sleep(1)  # as the answer says

    async def keep_leaving(self) -> None:
        for number in itertools.count():
            clock = self._steady
            if self.is_over:
                return
            if clock is None or clock.is_over:
                await asyncio.sleep(0.05)
                continue
            asked = self._ask(number)
            await clock.reached(clock.num_events + self._moments.randint(1, 20))
            self.num_left += not asked.is_over
            await asked.leave()

    async def keep_bursting(self) -> None:
        while not self.is_over:
            async with all_over(self._ask(number) for number in range(2 * CAPACITY)) as asked:
                pass
            for one in asked:
                self._check(one)
            await asyncio.sleep(_BURST_EVERY_S)

    def _ask(self, number: int) -> Asked:
        return Asked(self._client, {**LONG, "seed": number % _NUM_TEXTS, "stream": number % 2 == 0})

    def _check(self, asked: Asked) -> None:
        assert asked.status in (200, 429), (asked.status, asked.error)
        self.num_refused += asked.status == 429
        if asked.status == 200:
            assert asked.has_succeeded, asked.error
            assert asked.text == self._texts[asked.body["seed"]]
            self.num_answered += 1


def test_memory_descriptors_and_threads_are_flat_in_three_minutes_of_load(deployed, capsys):
    offline = deployed.texts_of([{**LONG, "seed": seed} for seed in range(_NUM_TEXTS)])
    texts = {seed: text for seed, (text,) in enumerate(offline)}
    watched = {f"replica {index}": psutil.Process(pid) for index, pid in enumerate(replica_pids())}
    watched["ingress"] = psutil.Process(pids(INGRESS_NAME)[0])
    watched["proxy"] = _listening_at(deployed.port)
    samples: dict[str, list[Sample]] = {name: [] for name in watched}

    async def watch(load: Load) -> None:
        while not load.is_over:
            for name, process in watched.items():
                samples[name].append(_sample(process))
            await asyncio.sleep(_EVERY_S)

    async def scenario() -> Load:
        async with deployed.raw_client() as client:
            load = Load(client, texts)
            async with asyncio.TaskGroup() as doing:
                doing.create_task(watch(load))
                doing.create_task(load.keep_bursting())
                for number in range(_NUM_STEADY):
                    doing.create_task(load.keep_asking(number))
                for _ in range(_NUM_LEAVING):
                    doing.create_task(load.keep_leaving())
            return load

    load = asyncio.run(scenario())
    deployed.wait_until_idle()
    with capsys.disabled():
        sys.stdout.write(_said(load, samples))
    assert min(load.num_answered, load.num_refused, load.num_left) > 20
    for name, of_process in samples.items():
        for what, most in _MOST_GROWTH.items():
            _, second, third = _minutes(of_process, what)
            assert third - second <= most, f"{what} of the {name} grew from {second:,.0f} to {third:,.0f} in a minute"


def _said(load: Load, samples: Mapping[str, list[Sample]]) -> str:
    """The figures, for a person: of each minute."""
    lines = [f"\nanswered {load.num_answered}, refused {load.num_refused}, left {load.num_left}"]
    for name, of_process in samples.items():
        for what in _MOST_GROWTH:
            minutes = ", ".join(f"{value:,.0f}" for value in _minutes(of_process, what))
            lines.append(f"{what} of the {name} in each minute: {minutes}")
    return "\n".join(lines) + "\n"


def _sample(process: psutil.Process) -> Sample:
    with process.oneshot():
        memory, descriptors, threads = process.memory_full_info().uss, process.num_fds(), process.num_threads()
    return {"seconds": time.monotonic(), "memory": memory, "descriptors": descriptors, "threads": threads}


def _minutes(samples: list[Sample], what: str) -> list[float]:
    """The mean of each minute."""
    began = samples[0]["seconds"]
    minutes: list[list[float]] = [[], [], []]
    for sample in samples:
        minutes[min(2, int((sample["seconds"] - began) / (_SECONDS / 3)))].append(sample[what])
    return [mean(minute) for minute in minutes]


def _listening_at(port: int) -> psutil.Process:
    (pid,) = {
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    }
    assert pid is not None
    return psutil.Process(pid)
