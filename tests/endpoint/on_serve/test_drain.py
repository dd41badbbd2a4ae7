"""`python -m jobs.serve` told to end while it serves: what it took is finished, and nothing new is taken."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from actors.engine.translation import decode_row, encode_row
from actors.workers.loading import load_codec
from decoding import Engine, EngineOptions
from tests.endpoint.asking import Asked, all_over
from tests.endpoint.on_serve.test_command import serving
from tests.endpoint.server import settings_of
from tests.pipeline.made_up import input_row

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
_NUM_REQUESTS, _NUM_SLOTS = 20, 8
_BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": 240, "ignore_eos": True}


def test_after_sigterm_twenty_requests_in_flight_end_well_and_new_ones_are_refused(text_pair: tuple[str, str]) -> None:
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
    assert [one.text for one in asked] == _offline(text_pair, [one.body["seed"] for one in asked])
    assert set(late) <= {200, 503}  # none that was taken was dropped, either


async def _num_in_flight(client: httpx2.AsyncClient) -> int:
    page = (await client.get("/metrics")).text
    gauges = ("dray_num_requests_running", "dray_num_requests_waiting")
    families = text_string_to_metric_families(page)
    return int(sum(sample.value for family in families for sample in family.samples if sample.name in gauges))


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


def _offline(pair: tuple[str, str], seeds: list[int]) -> list[str]:
    settings = settings_of(pair)
    codec = load_codec(settings)
    overrides = {name: value for name, value in _BODY.items() if name != "prompt"}
    encoded = [
        encode_row(input_row(prompt=_BODY["prompt"], overrides={**overrides, "seed": seed}), 0, codec, settings)
        for seed in seeds
    ]
    plain = Engine.load(pair[0], None, EngineOptions(drafter="none", max_model_len=250))
    for _ in plain.stream([sequence for row in encoded for sequence in row.sequences]):
        pass
    return [str(decode_row(row, codec)[0]["text"]) for row in encoded]
