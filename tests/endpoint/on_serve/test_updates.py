"""The application while it is replaced or taken away: what is in flight is finished, and no request fails."""

import asyncio
import itertools
import shutil
from dataclasses import replace
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from endpoint.deployment import DeployedVersion, deploy, deployed_version, withdraw
from tests.endpoint.asking import Asked, all_over
from tests.endpoint.in_process import MODEL
from tests.endpoint.on_serve.application import LONG, MAX_WAITING, Served, engine_stats, replica_pids
from tests.jobs.runs import wait_until

pytestmark = pytest.mark.ray
_NUM_CLIENTS = 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rolling_update_under_load_fails_no_request_and_changes_no_text(deployed):
    before = replica_pids()
    asked = asyncio.run(_asked_during(deployed, deployed.application(max_waiting=MAX_WAITING + 1)))
    deployed.check(asked)
    assert not set(before) & set(replica_pids())
    assert len(asked) > _NUM_CLIENTS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_update_to_another_model_under_load_fails_no_request_and_mixes_no_text(deployed, text_pair):
    other = replace(deployed.settings, models=replace(deployed.settings.models, target=text_pair[1], draft=None))
    written = Served(deployed.port, other)
    for application, before, after in (
        (deployed.application(other, fingerprint="fp_other"), deployed, written),
        (deployed.application(), written, deployed),
    ):
        asked = asyncio.run(_asked_during(deployed, application))
        assert [(one.status, one.error) for one in asked if not one.has_succeeded] == []
        for one, *texts in zip(asked, before.expected(asked), after.expected(asked), strict=True):
            assert one.text in texts
        with deployed.client() as client:
            answer = client.completions.create(model=MODEL, prompt="hello", max_tokens=9, seed=5)
        assert answer.choices[0].text == after.offline("hello", max_tokens=9, seed=5)[0]["text"]


@pytest.mark.timeout(600)
def test_another_draft_under_load_replaces_no_process_fails_no_request_and_changes_no_text(deployed, tmp_path):
    draft = deployed.settings.models.draft
    assert draft is not None
    other = str(shutil.copytree(draft, tmp_path / "draft"))
    number = uuid4().hex
    deploy(deployed.application(version=DeployedVersion(number, "rest", draft)))
    before = replica_pids()
    assert deployed_version() == DeployedVersion(number, "rest", draft)
    models = replace(deployed.settings.models, draft=other)
    version = DeployedVersion(number, "rest", other)
    asked = asyncio.run(
        _asked_during(deployed, deployed.application(replace(deployed.settings, models=models), version))
    )
    deployed.check(asked)
    assert deployed_version() == version
    wait_until(lambda: [stats.draft_version for stats in engine_stats()] == [1] * deployed.num_replicas)
    assert replica_pids() == before
    with deployed.client() as client:
        answer = client.completions.create(model=MODEL, prompt="hello", max_tokens=9, seed=5)
    assert answer.choices[0].text == deployed.offline("hello", max_tokens=9, seed=5)[0]["text"]


def test_requests_in_flight_finish_when_the_application_is_withdrawn(deployed):
    """This is the last test over this application, which is gone afterwards."""
    bodies = [{**LONG, "seed": seed, "stream": seed > 1} for seed in range(8)]

    async def scenario() -> tuple[list[Asked], Asked]:
        async with deployed.raw_client() as client, all_over(Asked(client, body) for body in bodies) as asked:
            await asyncio.gather(*(stream.reached(1) for stream in asked[2:]))
            ending = asyncio.ensure_future(asyncio.to_thread(withdraw, 10))
            await asyncio.gather(*(one.end() for one in asked))
            await ending
            async with all_over([Asked(client, bodies[0])]) as late:
                pass
            return asked, late[0]

    asked, late = asyncio.run(scenario())
    deployed.check(asked)
    assert late.status == 503
    assert late.error is not None
    assert late.error["code"] == "model_unavailable"


async def _asked_during(deployed: Served, application: Any) -> list[Asked]:
    """Deploy under load, and return all requests: those during the deployment, and one that had begun before."""
    seeds = itertools.count()

    async def keep_asking(client: httpx2.AsyncClient, updating: asyncio.Future[object]) -> list[Asked]:
        asked: list[Asked] = []
        while not updating.done() or not asked:
            seed = next(seeds)
            asked.append(Asked(client, {**LONG, "seed": seed, "stream": seed % 2 == 0}))
            await asked[-1].end()
        return asked

    async with deployed.raw_client() as client:
        async with all_over([Asked(client, {**LONG, "seed": 1000, "stream": True})]) as first:
            await first[0].reached(1)
            updating = asyncio.ensure_future(asyncio.to_thread(deploy, application))
            asked = await asyncio.gather(*(keep_asking(client, updating) for _ in range(_NUM_CLIENTS)))
            await updating
        return [*first, *itertools.chain.from_iterable(asked)]
