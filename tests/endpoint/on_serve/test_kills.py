"""Processes that are killed while they answer: a text is whole and exact, or ends with an error, and others follow."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable
from statistics import median

import httpx2
import psutil
import pytest

from endpoint.gate.gate import INGRESS_NAME
from tests.endpoint.asking import Asked
from tests.endpoint.on_serve.application import LONG, Served, is_alive, kill, pids, replica_pids
from tests.jobs.runs import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
_NUM_REQUESTS = 6  # that one replica has room for
_NUM_KILLS = 10
_PROXY_BACK_S = 60.0  # on a machine that does other work, too
SHORT = {**LONG, "max_tokens": 1}


@pytest.mark.parametrize("num_kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_text_whose_replica_is_killed_is_exact_or_ends_with_an_error(deployed, num_kills, capsys):
    moments = random.Random(num_kills)
    kills = Kills()
    for number in range(num_kills):
        deployed.wait_until_whole()
        asyncio.run(kills.kill_once(deployed, number, moments, replica_pids))
    asked = kills.asked
    deployed.check(one for one in asked if one.has_succeeded)
    for one, text in zip(asked, deployed.expected(asked), strict=True):
        assert one.has_succeeded or one.error is not None, "cut short"
        assert text.startswith(one.text)
    assert sum(one.has_succeeded for one in asked) >= len(asked) / 2
    deployed.wait_until_idle()
    kills.show("replica", capsys)


@pytest.mark.slow
def test_an_ingress_that_is_killed_fails_no_request_and_streams_go_on(deployed, capsys):
    moments = random.Random(1)
    kills = Kills()
    for number in range(_NUM_KILLS):
        deployed.wait_until_whole()
        wait_until(lambda: len(running_ingresses()) == 2, 180, every_s=0.1)
        asyncio.run(kills.kill_once(deployed, number, moments, running_ingresses))
    asked = kills.asked
    deployed.check(asked)
    assert any(one.has_begun_before_kill for one in asked)
    assert all(one.status == 200 for one in kills.next_ones)
    deployed.wait_until_idle()
    kills.show("ingress", capsys)


@pytest.mark.slow
def test_a_proxy_that_is_killed_cuts_no_text_short_without_the_client_seeing_it_and_comes_back(deployed, capsys):
    moments = random.Random(2)
    kills = Kills()
    for number in range(_NUM_KILLS):
        deployed.wait_until_whole()
        asyncio.run(kills.kill_once(deployed, number, moments, lambda: [proxy_pid(deployed.port)]))
    deployed.check(one for one in kills.asked if one.has_succeeded)
    for one in kills.asked:
        assert one.has_succeeded or one.has_broken, "cut short"
    assert len(kills.seconds_to_next) == _NUM_KILLS
    assert max(kills.seconds_to_next) < _PROXY_BACK_S
    deployed.wait_until_idle()
    kills.show("proxy", capsys)


class Kills:
    """What became of requests that were under way at some kills, and of the next ones."""

    def __init__(self) -> None:
        self.asked: list[Killed] = []  # under way at a kill
        self.next_ones: list[Asked] = []  # sent at once after a kill, until one is answered
        self.seconds_to_next: list[float] = []  # from a kill to the first answer of those
        self.seconds_to_error: list[float] = []  # from a kill to the error of a request under way

    async def kill_once(
        self, deployed: Served, number: int, moments: random.Random, victims: Callable[[], list[int]]
    ) -> None:
        """Kill one of the victims while requests are under way."""
        bodies = [{**LONG, "seed": 100 * number + index, "stream": index > 1} for index in range(_NUM_REQUESTS)]
        async with deployed.raw_client() as client:
            asked = [Killed(client, body) for body in bodies]
            streams, moment = asked[2:], moments.randint(1, 8)
            await asyncio.gather(*(stream.reached(moment) for stream in streams))
            victim = moments.choice(victims())
            kill(victim)
            killed_at = time.monotonic()
            assert not all(stream.is_over for stream in streams), "killed too late"
            for one in asked:
                one.has_begun_before_kill = one.num_events > 0
            while time.monotonic() < killed_at + _PROXY_BACK_S:
                following = Killed(client, SHORT)
                await following.settled()
                if not following.has_broken:
                    self.next_ones.append(following)
                if following.has_succeeded:
                    self.seconds_to_next.append(time.monotonic() - killed_at)
                    break
                await asyncio.sleep(0.05)
            for one in asked:
                await one.settled()
        self.asked += asked
        self.seconds_to_error += [one.ended_at - killed_at for one in asked if not one.has_succeeded]

    def show(self, what: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Print the figures, for a person."""
        num_whole, num_ended = sum(one.has_succeeded for one in self.asked), len(self.seconds_to_error)
        ended = f", within {max(self.seconds_to_error):.2f} s" if num_ended else ""
        following = f"{median(self.seconds_to_next):.2f} s (at most {max(self.seconds_to_next):.2f})"
        each = " ".join(f"{seconds:.2f}" for seconds in self.seconds_to_next)
        with capsys.disabled():
            sys.stdout.write(
                f"\n{len(self.seconds_to_next)} kills ({what}): of {len(self.asked)} requests under way {num_whole} "
                f"were whole and exact, {num_ended} ended with an error{ended}; "
                f"the next answer after {following}: {each}\n"
            )


class Killed(Asked):
    """A request under way at a kill."""

    has_begun_before_kill = has_broken = False  # some of its stream had come; its connection broke
    ended_at = 0.0

    async def settled(self) -> None:
        """Return when it is over, in whatever way."""
        try:
            await self.end()
        except (httpx2.TransportError, ValueError):  # HAProxy's own answers are no JSON
            self.has_broken = True

    async def _ask(self, client: httpx2.AsyncClient) -> None:
        try:
            await super()._ask(client)
        finally:
            self.ended_at = time.monotonic()


def running_ingresses() -> list[int]:
    """Return the ingresses that Serve takes for running, and that do run."""
    return [pid for pid in pids(INGRESS_NAME) if is_alive(pid)]


def proxy_pid(port: int) -> int:
    """Return the process that listens for clients."""
    listening = (c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr.port == port)
    (pid,) = {connection.pid for connection in listening}
    assert pid is not None
    return pid
