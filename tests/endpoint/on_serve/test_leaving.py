"""Clients that leave at any moment: their slots are free again, and no other text changes."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from tests.endpoint.asking import Asked, all_over
from tests.endpoint.on_serve.application import LONG

pytestmark = pytest.mark.ray
_NUM_AT_A_TIME = 6  # with the two that stay no more than one replica takes
_LATEST = 12  # events of another stream after which the last clients have left


class Companions:
    """Streams, one at a time: a clock for the clients that leave, and texts that must not change."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.asked: list[Asked] = []
        self._client = client

    async def events(self, num_events: int) -> None:
        """Return when `num_events` more events have come."""
        while num_events > 0:
            now, before = self.asked[-1], self.asked[-1].num_events
            await now.reached(before + num_events)
            num_events -= now.num_events - before
            if now.is_over and now is self.asked[-1]:
                self._next()

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        self._next()
        await self.asked[0].reached(1)
        yield
        await self.asked[-1].end()

    def _next(self) -> None:
        self.asked.append(Asked(self._client, {**LONG, "seed": 1000 + len(self.asked), "stream": True}))


@pytest.mark.parametrize("num_leaving", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_a_client_that_leaves_frees_its_slot_and_changes_no_other_text(deployed, num_leaving):
    moments = random.Random(num_leaving)

    async def leave(client: httpx2.AsyncClient, seed: int, clock: Companions, in_turn: asyncio.Semaphore) -> bool:
        async with in_turn:
            asked = Asked(client, {**LONG, "seed": seed, "stream": seed % 2 == 0})
            await clock.events(moments.randint(0, _LATEST))
            has_left = not asked.is_over
            await asked.leave()
            return has_left

    async def scenario() -> tuple[list[bool], list[Asked]]:
        in_turn = asyncio.Semaphore(_NUM_AT_A_TIME)
        async with deployed.raw_client() as client:
            companions = Companions(client)
            async with companions.going_on(), all_over([Asked(client, {**LONG, "seed": 7})]) as staying:
                leaving = [leave(client, seed, companions, in_turn) for seed in range(num_leaving)]
                have_left = await asyncio.gather(*leaving)
            return have_left, [*staying, *companions.asked]

    have_left, others = asyncio.run(scenario())
    assert sum(have_left) >= num_leaving / 2  # while they were served; few were done, or refused
    deployed.wait_until_idle()
    deployed.check(others)
