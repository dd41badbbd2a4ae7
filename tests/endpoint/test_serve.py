"""The application on Ray Serve: two replicas, real processes, real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families

from actors.generator import load_codec
from actors.replica import ReplicaSettings
from actors.settings import GeneratorSettings
from actors.translation import decode_row, encode_row
from decoding import Engine, EngineOptions
from endpoint.auth import Keys
from endpoint.deployment import APP_NAME, DeploymentSettings, deploy, make_application, withdraw
from endpoint.edge import EdgeSettings
from endpoint.service import ServiceSettings
from pipeline.logs import LogSettings
from tests.endpoint.server import MODEL, settings_of
from tests.endpoint.toy_app import BEARER, KEY
from tests.endpoint.web import ask as ask_raw
from tests.endpoint.web import send_raw, status_of
from tests.pipeline.made_up import input_row

pytestmark = pytest.mark.ray
CONTEXT, MAX_WAITING, NUM_SLOTS = 256, 4, 4


@dataclass(frozen=True)
class Deployed:
    port: int
    settings: GeneratorSettings
    plain: Engine

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, **{"max_retries": 0, **options})

    def offline(self, prompt: str | None = None, messages: list[Any] | None = None, **overrides: Any) -> list[str]:
        codec = load_codec(self.settings)
        encoded = encode_row(input_row(prompt=prompt, messages=messages, overrides=overrides), 0, codec, self.settings)
        for _ in self.plain.stream(encoded.sequences):
            pass
        return [row["text"] for row in decode_row(encoded, codec)]


@pytest.fixture(scope="module")
def deployed(serve_port: int, text_pair: tuple[str, str]) -> Iterator[Deployed]:
    settings = settings_of(text_pair, num_slots=NUM_SLOTS, max_model_len=CONTEXT)
    application = make_application(
        settings,
        ServiceSettings(model=MODEL),
        EdgeSettings(keys=Keys([KEY])),
        ReplicaSettings(max_waiting=MAX_WAITING),
        DeploymentSettings(min_replicas=2, max_replicas=2, num_cpus=0.5, drain_timeout_s=10),
        LogSettings(level="warning"),
    )
    deploy(application)
    options = EngineOptions(num_slots=8, drafter="none", max_model_len=CONTEXT)
    yield Deployed(serve_port, settings, Engine.load(settings.models.target, None, options))
    withdraw(drain_timeout_s=10)


def text_of(chunks: Any) -> str:
    return "".join(choice.text for chunk in chunks for choice in chunk.choices)


def test_whole_streamed_and_offline_texts_are_one_from_any_replica(deployed: Deployed) -> None:
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
    page = ask_raw(deployed.port, "/metrics", headers=BEARER).body.decode()
    counted = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    assert [sample.value for sample in counted if sample.labels.get("status") == "401"] == [2.0]
    assert next(sample.value for sample in counted if sample.labels.get("finished_reason") == "length") >= 1


@pytest.mark.slow
def test_requests_side_by_side_do_not_change_each_others_text(deployed: Deployed) -> None:
    prompts = ["hello", "one two", "small text", "a", "three", "world", "for a", "two"]

    def ask(client: openai.OpenAI, prompt: str) -> str:
        return client.completions.create(model=MODEL, prompt=prompt, seed=3, max_tokens=40).choices[0].text

    with deployed.client(max_retries=6) as client, ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda prompt: ask(client, prompt), prompts))
    assert texts == [deployed.offline(prompt, seed=3, max_tokens=40)[0] for prompt in prompts]


@pytest.mark.slow
def test_what_is_wrong_and_what_is_unknown_come_in_the_apis_form(deployed: Deployed) -> None:
    with deployed.client() as client:
        with pytest.raises(openai.BadRequestError) as bad:
            client.completions.create(model=MODEL, prompt="a", suffix="b")
        assert bad.value.param == "suffix"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="a", stream=True)
    assert httpx2.get(f"{deployed.url}/health").json() == {"status": "ok"}
    assert httpx2.get(f"{deployed.url}/health/ready").json() == {"status": "ready"}


@pytest.mark.slow
def test_a_burst_beyond_the_queues_is_refused_with_429_and_succeeds_when_tried_again(deployed: Deployed) -> None:
    request: dict[str, Any] = {"model": MODEL, "prompt": "hello", "max_tokens": 200, "extra_body": {"ignore_eos": True}}

    def ask(client: openai.OpenAI, seed: int) -> tuple[int, Any]:
        try:
            return 200, client.completions.create(**request, seed=seed).choices[0].text
        except openai.APIStatusError as error:
            return error.status_code, error

    num_requests = 4 * 2 * (NUM_SLOTS + MAX_WAITING)
    with deployed.client() as client, ThreadPoolExecutor(num_requests) as pool:
        answers = list(pool.map(lambda seed: ask(client, seed), range(num_requests)))
    refused = [error for status, error in answers if status == 429]
    assert {status for status, _ in answers} == {200, 429}
    assert all(isinstance(error, openai.RateLimitError) for error in refused)
    assert all(error.response.headers["retry-after"] == "1" and error.code == "server_busy" for error in refused)
    done = [(seed, text) for seed, (status, text) in enumerate(answers) if status == 200]
    assert len(done) >= 2 * NUM_SLOTS
    seed, text = done[-1]
    assert [text] == deployed.offline("hello", max_tokens=200, ignore_eos=True, seed=seed)
    with deployed.client(max_retries=8) as client, ThreadPoolExecutor(24) as pool:
        again = list(pool.map(lambda seed: ask(client, seed), range(24)))
    assert {status for status, _ in again} == {200}


@pytest.mark.slow
def test_a_text_whose_replica_is_killed_goes_on_with_the_other_one_and_is_the_same(deployed: Deployed) -> None:
    request: dict[str, Any] = {"prompt": "hello world", "max_tokens": 240}
    with deployed.client() as client:
        streams = [
            client.completions.create(model=MODEL, stream=True, seed=seed, extra_body={"ignore_eos": True}, **request)
            for seed in range(4)
        ]
        texts = [text_of([next(stream)]) for stream in streams]
        victim = next(name for name in replica_names())
        ray.kill(ray.get_actor(victim, namespace="serve"))
        texts = [text + text_of(stream) for text, stream in zip(texts, streams, strict=True)]
    assert texts == [deployed.offline(**request, ignore_eos=True, seed=seed)[0] for seed in range(4)]


def replica_names() -> list[str]:
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    return sorted(name for name in names if name.startswith("SERVE_REPLICA") and f"{APP_NAME}#Replica" in name)
