"""The endpoint on Ray Serve over vLLM's engines: what a client sees when a replica is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from endpoint.deployment import deploy
from endpoint.http.bodies import Limits
from tests.endpoint.asking import Asked, all_over
from tests.endpoint.on_serve.application import LONG, Served, kill, replica_pids, running_serve, take_away
from tests.jobs.runs import wait_until
from tests.vllm.conftest import vllm_settings
from tests.vllm.runs import vllm_processes

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
_CONTEXT = 256


@pytest.fixture(scope="module")
def deployed(ray_address: str) -> Iterator[Served]:
    """The application with two replicas."""
    with running_serve(Limits()) as port:
        served = Served(port, vllm_settings(has_draft=True, num_slots=4, max_model_len=_CONTEXT))
        deploy(served.application())
        try:
            yield served
        finally:
            take_away()
    wait_until(lambda: vllm_processes() == [], 60)


def test_a_stream_whose_replica_is_killed_ends_with_an_error_and_a_whole_answer_is_begun_anew(deployed: Served) -> None:
    deployed.wait_until_whole()
    asked = asyncio.run(_one_replica_killed(deployed))
    texts = deployed.texts_of([{**LONG, "temperature": 0.0}])[0]
    for one in asked:
        if one.has_succeeded:
            assert [one.text] == texts
        else:
            assert one.body["stream"]
            assert one.error is not None, "cut short"
            assert one.text
            assert texts[0].startswith(one.text)
    streams = [one for one in asked if one.body["stream"]]
    assert 0 < sum(one.has_succeeded for one in streams) < len(streams)
    deployed.wait_until_whole()
    deployed.wait_until_idle()


async def _one_replica_killed(deployed: Served) -> list[Asked]:
    bodies = [{**LONG, "temperature": 0.0, "stream": index > 1} for index in range(6)]
    async with deployed.raw_client() as client, all_over(Asked(client, body) for body in bodies) as asked:
        streams = asked[2:]
        await asyncio.gather(*(stream.reached(2) for stream in streams))
        kill(replica_pids()[0])
        assert not all(stream.is_over for stream in streams), "killed too late"
    return asked
