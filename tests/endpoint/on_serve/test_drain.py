"""`python -m jobs.serve` after SIGTERM: requests in flight finish, and new ones are refused."""

import asyncio
import signal
import subprocess
from typing import Any

import httpx2
import pytest

from tests.endpoint.asking import Asked, all_over
from tests.endpoint.on_serve.test_command import offline, serving
from tests.endpoint.web import samples_of

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
_NUM_REQUESTS, _NUM_SLOTS = 20, 8
_BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": 240, "ignore_eos": True}


def test_after_sigterm_twenty_requests_in_flight_finish_and_new_ones_are_refused(text_pair):
    async def scenario(process: subprocess.Popen[str], url: str) -> tuple[list[Asked], list[int]]:
        limits = httpx2.Limits(max_connections=None)
        bodies = [{**_BODY, "seed": seed, "stream": seed % 2 == 0} for seed in range(_NUM_REQUESTS)]
        async with httpx2.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
            async with all_over(Asked(client, body) for body in bodies) as asked:
                while await _num_in_flight(client) < _NUM_REQUESTS:
                    assert not any(one.is_over for one in asked), "too late for a test of what is in flight"
                process.send_signal(signal.SIGTERM)
                late = await _ask_until_refused(client)
            return asked, late

    with serving(text_pair, f"--engine.num_slots={_NUM_SLOTS}") as (process, url):
        asked, late = asyncio.run(scenario(process, url))
        assert process.wait(120) == 0
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{url}/health")
    assert [(one.status, one.error) for one in asked if not one.has_succeeded] == []
    assert [one.text for one in asked] == offline(text_pair, [one.body for one in asked])
    assert set(late) <= {200, 503}  # none that was taken was dropped, either


async def _num_in_flight(client: httpx2.AsyncClient) -> int:
    gauges = ("dray_num_requests_running", "dray_num_requests_waiting")
    samples = samples_of((await client.get("/metrics")).text)
    return int(sum(sample.value for sample in samples if sample.name in gauges))


async def _ask_until_refused(client: httpx2.AsyncClient) -> list[int]:
    """The status of each answer to a short request, up to the first that is not taken any more."""
    statuses: list[int] = []
    while not statuses or statuses[-1] == 200:
        try:
            answer = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        except httpx2.ConnectError:
            return statuses
        statuses.append(answer.status_code)
    return statuses
