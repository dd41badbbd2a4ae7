"""More requests than fit: each gets the exact text or an error in the API's form, and none is lost."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.endpoint.asking import Asked, all_over
from tests.endpoint.in_process import MODEL
from tests.endpoint.on_serve.application import CAPACITY, LONG, NUM_SLOTS

pytestmark = pytest.mark.ray


def test_under_four_times_the_capacity_each_request_gets_the_exact_text_or_a_429(deployed):
    bodies = [{**LONG, "seed": seed, "stream": seed % 2 == 0} for seed in range(4 * CAPACITY)]

    async def scenario() -> list[Asked]:
        async with deployed.raw_client() as client, all_over(Asked(client, body) for body in bodies) as asked:
            return asked

    asked = asyncio.run(scenario())
    done = [one for one in asked if one.status == 200]
    refused = [one for one in asked if one.status != 200]
    assert {one.status for one in refused} == {429}
    assert len(done) >= 2 * NUM_SLOTS
    for one in refused:
        assert one.headers is not None
        assert one.error is not None
        assert (one.headers["retry-after"], one.error["code"]) == ("1", "server_busy")
        assert one.error.keys() == {"message", "type", "param", "code"}
    assert all(one.error is None for one in done)
    deployed.check(done)
    deployed.wait_until_idle()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_under_four_times_the_capacity_all_requests_succeed_with_the_official_clients_retries(deployed):
    num_requests = 4 * CAPACITY

    def ask(client: openai.OpenAI, seed: int) -> str:
        extra = {"ignore_eos": True}
        answer = client.completions.create(
            model=MODEL, prompt=LONG["prompt"], max_tokens=LONG["max_tokens"], seed=seed, extra_body=extra
        )
        return answer.choices[0].text

    with deployed.client(max_retries=60) as client, ThreadPoolExecutor(num_requests) as pool:
        texts = list(pool.map(lambda seed: ask(client, seed), range(num_requests)))
    assert [[text] for text in texts] == deployed.texts_of([{**LONG, "seed": seed} for seed in range(num_requests)])
    deployed.wait_until_idle()
