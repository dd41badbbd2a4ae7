"""The application on Ray Serve: two replicas, real processes, real HTTP."""

from typing import Any

import httpx2
import pytest

from tests.endpoint.in_process import MODEL, answered, streamed
from tests.endpoint.on_serve.application import NUM_INGRESSES
from tests.endpoint.toy_app import BEARER
from tests.endpoint.web import ask as ask_raw
from tests.endpoint.web import samples_of, send_raw, status_of

pytestmark = pytest.mark.ray


def test_whole_streamed_and_offline_texts_are_equal_from_every_replica(deployed):
    with deployed.client() as client:
        for request in ({"temperature": 0.0}, {"seed": 5}, {"seed": 6, "top_p": 0.8, "n": 2}):
            (expected,) = deployed.texts_of([{"prompt": "hello world", "max_tokens": 30, **request}])
            for _ in range(2):
                answer = answered(client.completions, prompt="hello world", max_tokens=30, **request)
                assert [choice.text for choice in answer.choices] == expected
            texts, _ = streamed(client.completions, prompt="hello world", max_tokens=30, **request)
            assert texts == dict(enumerate(expected))
        messages: list[Any] = [{"role": "user", "content": "hello <|end|>"}]
        answer = answered(client.chat.completions, messages=messages, seed=1, max_tokens=20)
        (row,) = deployed.offline(messages=messages, seed=1, max_tokens=20)
        assert answer.choices[0].message.content == row["text"]
        scored = answered(client.completions, prompt="one two", max_tokens=0, echo=True, logprobs=1)
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
    shown = samples_of(ask_raw(deployed.port, "/metrics", headers=BEARER).body)
    assert len({sample.labels["process"] for sample in shown if "process" in sample.labels}) == NUM_INGRESSES
    (usage,) = [sample.value for sample in shown if sample.name == "vllm:kv_cache_usage_perc"]
    assert 0 <= usage <= 1
    assert httpx2.get(f"{deployed.url}/health/ready").json() == {"status": "ready"}
