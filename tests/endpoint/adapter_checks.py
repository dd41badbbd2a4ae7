"""What an endpoint with adapters must do, wherever it runs: each name is a model of its own."""

import json
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from tests.endpoint.in_process import Running, streamed_of
from tests.endpoint.web import ask, samples_of

BASE, PIRATE, POET = "base", "pirate", "team/poet"
REQUESTS: list[dict[str, Any]] = [
    {"prompt": "hello world", "max_tokens": 30, "temperature": 0.0},
    {"prompt": "hello world", "max_tokens": 30, "seed": 5},
    {"prompt": "one two", "max_tokens": 30, "seed": 6, "top_p": 0.8},
]


@dataclass(frozen=True)
class Adapted:
    """An endpoint with a base, two adapters or more, and each model's target alone."""

    port: int
    alone: dict[str, Running]

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="any", max_retries=5)


def expected(endpoint: Adapted, requests: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return what each target alone writes; no two write the same."""
    found = {name: [text for (text,) in alone.texts_of(requests)] for name, alone in endpoint.alone.items()}
    for index in range(len(requests)):
        assert len({each[index] for each in found.values()}) == len(found), "nothing is put to the test"
    return found


def check_texts(endpoint: Adapted) -> None:
    """Check completions, whole and streamed, against what each target writes alone."""
    wanted = expected(endpoint, REQUESTS)
    with endpoint.client() as client:
        for name, own in wanted.items():
            for request, text in zip(REQUESTS, own, strict=True):
                answer = client.completions.create(model=name, **request)
                assert (answer.choices[0].text, answer.model) == (text, name)
                assert streamed_of(client.completions, model=name, **request)[0] == {0: text}


def check_other_routes(endpoint: Adapted) -> None:
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    scores = set()
    with endpoint.client() as client:
        for name, alone in endpoint.alone.items():
            (row,) = alone.offline(messages=messages, seed=1, max_tokens=20)
            answer = client.chat.completions.create(model=name, messages=messages, seed=1, max_tokens=20)
            assert answer.choices[0].message.content == row["text"]
            assert streamed_of(client.chat.completions, model=name, messages=messages, seed=1, max_tokens=20)[0] == {
                0: row["text"]
            }
            created = client.responses.create(
                model=name, input="hello", max_output_tokens=20, extra_body={"seed": 1}, store=False
            )
            assert (created.output_text, created.model) == (row["text"], name)
            structured = {"structured": {"regex": "(one|two){3}"}}
            (forced,) = alone.offline("hello", seed=2, max_tokens=20, **structured)
            body = {"structured_outputs": {"regex": "(one|two){3}"}}
            found = client.completions.create(model=name, prompt="hello", seed=2, max_tokens=20, extra_body=body)
            assert found.choices[0].text == forced["text"]
            scored = client.completions.create(model=name, prompt="one two", max_tokens=0, echo=True, logprobs=1)
            assert scored.choices[0].logprobs is not None
            scores.add(tuple(scored.choices[0].logprobs.token_logprobs or ())[1:])
    assert len(scores) == 3, "each has its own"


def check_names(endpoint: Adapted) -> None:
    with endpoint.client() as client:
        found = {each.id: each.to_dict() for each in client.models.list()}
        assert {name: (each["root"], each["parent"]) for name, each in found.items()} == {
            BASE: (BASE, None),
            PIRATE: (PIRATE, BASE),
            POET: (POET, BASE),
        }
        assert client.models.retrieve(POET).to_dict() == found[POET]
        with pytest.raises(openai.NotFoundError, match=r"'other' does not exist\. This server has 'base', 'pirate', "):
            client.completions.create(model="other", prompt="a")
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [1]}),
    ):
        refused = ask(endpoint.port, path, {"model": "unknown", **body})
        assert (refused.status, refused.error["code"]) == (404, "model_not_found")
        assert (
            ask(endpoint.port, path, {"model": POET, **body, **({"max_tokens": 1} if "chat" in path else {})}).status
            == 200
        )
    nameless = ask(endpoint.port, "/v1/completions", {**REQUESTS[0]})
    assert json.loads(nameless.body)["model"] == BASE
    assert json.loads(nameless.body)["choices"][0]["text"] == expected(endpoint, REQUESTS[:1])[BASE][0]


def check_metrics(endpoint: Adapted) -> None:
    def counts() -> dict[tuple[str, str], float]:
        shown = samples_of(ask(endpoint.port, "/metrics").body)
        wanted = (
            "dray_http_requests_total",
            "dray_served_generation_tokens_total",
            "dray_e2e_request_latency_seconds_count",
        )
        found: dict[tuple[str, str], float] = {}
        for sample in shown:
            is_own = sample.labels.get("route", "/v1/completions") == "/v1/completions"
            if sample.name in wanted and is_own:
                key = sample.name, sample.labels["model_name"]
                found[key] = found.get(key, 0) + sample.value
        return found

    before = counts()
    assert (
        ask(
            endpoint.port,
            "/v1/completions",
            {"prompt": "hello world", "ignore_eos": True, "model": POET, "max_tokens": 9},
        ).status
        == 200
    )
    after = counts()
    changed = {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key, 0)}
    assert changed.pop(("dray_served_generation_tokens_total", POET)) == 9
    assert set(changed.values()) == {1}
    assert {name for _, name in changed} == {POET}


CHECKS = [check_texts, check_other_routes, check_names, check_metrics]
