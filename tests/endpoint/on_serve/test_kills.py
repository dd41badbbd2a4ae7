"""Replicas that are killed while they write: a text is whole and exact, or ends with an error."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.endpoint.asking import Asked, all_over
from tests.endpoint.on_serve.application import LONG, Served, kill, replica_pids

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
_NUM_REQUESTS = 6  # that one replica has room for


@pytest.mark.parametrize("num_kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_text_whose_replica_is_killed_is_exact_or_ends_with_an_error(deployed: Served, num_kills: int) -> None:
    moments = random.Random(num_kills)
    asked: list[Asked] = []
    for number in range(num_kills):
        deployed.wait_until_whole()
        asked += asyncio.run(_killed_once(deployed, number, moments))
    deployed.check(one for one in asked if one.has_succeeded)
    for one, text in zip(asked, deployed.expected(asked), strict=True):
        assert one.has_succeeded or one.error is not None, "cut short"
        assert text.startswith(one.text)
    assert sum(one.has_succeeded for one in asked) >= len(asked) / 2
    deployed.wait_until_idle()


async def _killed_once(deployed: Served, number: int, moments: random.Random) -> list[Asked]:
    bodies = [{**LONG, "seed": 100 * number + index, "stream": index > 1} for index in range(_NUM_REQUESTS)]
    async with deployed.raw_client() as client, all_over(Asked(client, body) for body in bodies) as asked:
        streams = asked[2:]
        moment = moments.randint(1, 8)
        await asyncio.gather(*(stream.reached(moment) for stream in streams))
        kill(moments.choice(replica_pids()))
        assert not all(stream.is_over for stream in streams), "killed too late"
    return asked
