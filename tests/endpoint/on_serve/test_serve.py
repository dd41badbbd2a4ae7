"""The application on Ray Serve: two replicas, real processes, real HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest

from tests.endpoint.in_process import MODEL
from tests.endpoint.on_serve.application import Served
from tests.endpoint.toy_app import BEARER
from tests.endpoint.web import ask as ask_raw
from tests.endpoint.web import send_raw, status_of

pytestmark = pytest.mark.ray


def text_of(chunks: Any) -> str:
    return "".join(choice.text for chunk in chunks for choice in chunk.choices)


def test_whole_streamed_and_offline_texts_are_equal_from_every_replica(deployed: Served) -> None:
    with deployed.client() as client:
        for request in ({"temperature": 0.0}, {"seed": 5}, {"seed": 6, "top_p": 0.8, "n": 2}):
            expected = deployed.offline("hello world", max_tokens=30, **request)
            for _ in range(2):
                answer = client.completions.create(model=MODEL, prompt="hello world", max_tokens=30, **request)  # type: ignore[call-overload]
                assert [choice.text for choice in answer.choices] == expected
            if "n" not in request:
                chunks = client.completions.create(  # type: ignore[call-overload]
                    model=MODEL, prompt="hello world", max_tokens=30, stream=True, **request
                )
                assert text_of(chunks) == expected[0]
        messages: list[Any] = [{"role": "user", "content": "hello <|end|>"}]
        answer = client.chat.completions.create(model=MODEL, messages=messages, seed=1, max_tokens=20)
        assert [answer.choices[0].message.content] == deployed.offline(messages=messages, seed=1, max_tokens=20)
        scored = client.completions.create(model=MODEL, prompt="one two", max_tokens=0, echo=True, logprobs=1)
        assert scored.choices[0].logprobs is not None
        assert client.models.retrieve(MODEL).id == MODEL
    refused = ask_raw(deployed.port, "/v1/completions", {"prompt": "a"})
    assert (refused.status, refused.error["code"]) == (401, "missing_api_key")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 90000\r\n"
    assert status_of(send_raw(deployed.port, head + b"\r\n", b"{")) == 401, "the rest was not waited for"
    steered = {**BEARER, "x-request-timeout-seconds": "0", "x-request-id": "mine"}
    answer = ask_raw(deployed.port, "/v1/completions", {"prompt": "a", "max_tokens": 3}, headers=steered)
    assert (answer.status, answer.request_ids) == (200, ("mine",))
    assert deployed.metric("dray_http_requests_total", status="401") == 2
    assert deployed.metric("dray_requests_finished_total", finished_reason="length") >= 1


@pytest.mark.slow
def test_requests_side_by_side_do_not_change_each_others_text(deployed: Served) -> None:
    prompts = ["hello", "one two", "small text", "a", "three", "world", "for a", "two"]

    def ask(client: openai.OpenAI, prompt: str) -> str:
        return client.completions.create(model=MODEL, prompt=prompt, seed=3, max_tokens=40).choices[0].text

    with deployed.client(max_retries=6) as client, ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda prompt: ask(client, prompt), prompts))
    assert texts == [deployed.offline(prompt, seed=3, max_tokens=40)[0] for prompt in prompts]


@pytest.mark.slow
def test_errors_come_in_the_form_of_the_api(deployed: Served) -> None:
    with deployed.client() as client:
        with pytest.raises(openai.BadRequestError) as bad:
            client.completions.create(model=MODEL, prompt="a", suffix="b")
        assert bad.value.param == "suffix"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="a", stream=True)
    assert httpx2.get(f"{deployed.url}/health").json() == {"status": "ok"}
    assert httpx2.get(f"{deployed.url}/health/ready").json() == {"status": "ready"}
