"""Several adapters on Ray Serve: each name writes its own target's text, and none is in another one's way."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import yaml

from endpoint.deployment import deploy, deployed_version
from endpoint.service.served_model import ServedModel
from jobs.config.serve import load_serve_config
from jobs.work import serving
from tests.adapted import keep_merged_models_in, save_adapter
from tests.endpoint.asking import Asked
from tests.endpoint.batches.asking import begin, ended, line, results, texts
from tests.endpoint.in_process import Running, streamed_of
from tests.endpoint.on_serve.application import engine_stats, kill, replica_pids, take_away
from tests.endpoint.web import ask, samples_of
from tests.jobs.runs import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
BASE, PIRATE, POET = "base", "pirate", "team/poet"
LONG: dict[str, Any] = {"prompt": "hello world", "max_tokens": 200, "ignore_eos": True}
REQUESTS: list[dict[str, Any]] = [
    {"prompt": "hello world", "max_tokens": 30, "temperature": 0.0},
    {"prompt": "hello world", "max_tokens": 30, "seed": 5},
    {"prompt": "one two", "max_tokens": 30, "seed": 6, "top_p": 0.8},
]


@dataclass(frozen=True)
class Endpoint:
    """The deployed endpoint, its configuration, and each model's target alone."""

    port: int
    folder: Path
    sections: dict[str, Any]
    alone: dict[str, Running]

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="any", max_retries=5)

    def raw_client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=300)

    def models(self, **changes: Any) -> tuple[Any, list[ServedModel], Any]:
        """Return configuration, models and deployment, as `jobs.serve` has them."""
        serve = self.sections["serve"] | changes.pop("serve", {})
        path = self.folder / "serve.yaml"
        path.write_text(yaml.safe_dump({**self.sections, **changes, "serve": serve}))
        config = load_serve_config(["--config", str(path)], "serve")
        return config, *serving.settled_models(config)

    def deploy(self, **changes: Any) -> None:
        """Deploy as `jobs.serve` does."""
        config, models, deployment = self.models(**changes)
        deploy(serving._application(config, models, deployment))
        for model in models:
            self.alone.setdefault(model.name, Running(self.port, model.settings))


@pytest.fixture(scope="module")
def endpoint(
    serve_port: int, text_pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Endpoint]:
    """An endpoint with a base, two adapters of it and the Batch API, one engine each."""
    folder = tmp_path_factory.mktemp("adapters")
    adapters = {name: save_adapter(text_pair[0], folder / f"adapter-{i}", i) for i, name in enumerate((PIRATE, POET))}
    sections = {
        "models": {"target": text_pair[0], "draft": text_pair[1], "device": "cpu"},
        "engine": {"num_slots": 4, "num_speculative_tokens": 3, "draft_length": "fixed", "max_model_len": 250},
        "serve": {
            "open": True,
            "model": BASE,
            "adapters": adapters,
            "num_cpus": 0.2,
            "num_ingresses": 1,
            "drain_timeout_s": 10,
            "batches_path": str(folder / "batches"),
        },
    }
    take_away()
    with pytest.MonkeyPatch.context() as patch:
        keep_merged_models_in(folder / "merged", patch)
        found = Endpoint(serve_port, folder, sections, {})
        found.deploy()
        try:
            yield found
        finally:
            take_away()


def expected(endpoint: Endpoint, requests: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return what each target alone writes; no two write the same."""
    found = {name: [text for (text,) in alone.texts_of(requests)] for name, alone in endpoint.alone.items()}
    for index in range(len(requests)):
        assert len({each[index] for each in found.values()}) == len(found), "nothing is put to the test"
    return found


def test_each_name_writes_the_text_of_its_own_target_alone(endpoint: Endpoint) -> None:
    wanted = expected(endpoint, REQUESTS)
    with endpoint.client() as client:
        for name in (BASE, PIRATE, POET):
            for request, text in zip(REQUESTS, wanted[name], strict=True):
                answer = client.completions.create(model=name, **request)
                assert (answer.choices[0].text, answer.model) == (text, name)
                assert streamed_of(client.completions, model=name, **request)[0] == {0: text}


def test_chats_responses_forced_texts_and_scores_are_those_of_the_model_that_is_named(endpoint: Endpoint) -> None:
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


def test_the_models_are_listed_and_an_unknown_one_is_a_404_that_lists_their_names(endpoint: Endpoint) -> None:
    with endpoint.client() as client:
        found = {each.id: each.to_dict() for each in client.models.list()}
        assert {name: (each["root"], each["parent"]) for name, each in found.items()} == {
            BASE: (BASE, None),
            PIRATE: (PIRATE, BASE),
            POET: (POET, BASE),
        }
        assert client.models.retrieve(POET).to_dict() == found[POET]
        with pytest.raises(openai.NotFoundError, match=r"'nobody' does not exist\. This server has 'base', 'pirate', "):
            client.completions.create(model="nobody", prompt="a")
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [1]}),
    ):
        refused = ask(endpoint.port, path, {"model": "nobody", **body})
        assert (refused.status, refused.error["code"]) == (404, "model_not_found")
        assert (
            ask(endpoint.port, path, {"model": POET, **body, **({"max_tokens": 1} if "chat" in path else {})}).status
            == 200
        )
    nameless = ask(endpoint.port, "/v1/completions", {**REQUESTS[0]})
    assert json.loads(nameless.body)["model"] == BASE
    assert json.loads(nameless.body)["choices"][0]["text"] == expected(endpoint, REQUESTS[:1])[BASE][0]


def test_metrics_carry_the_name_of_the_model_that_was_asked(endpoint: Endpoint) -> None:
    def counts() -> dict[tuple[str, str], float]:
        shown = samples_of(ask(endpoint.port, "/metrics").body)
        wanted = ("dray_http_requests_total", "dray_generation_tokens_total", "dray_e2e_request_latency_seconds_count")
        found: dict[tuple[str, str], float] = {}
        for sample in shown:
            is_own = sample.labels.get("route", "/v1/completions") == "/v1/completions"
            if sample.name in wanted and is_own:
                key = sample.name, sample.labels["model_name"]
                found[key] = found.get(key, 0) + sample.value
        usage = {each.labels["model_name"] for each in shown if each.name == "vllm:kv_cache_usage_perc"}
        assert usage == set(endpoint.alone)
        return found

    before = counts()
    assert ask(endpoint.port, "/v1/completions", {**LONG, "model": POET, "max_tokens": 9}).status == 200
    after = counts()
    changed = {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key, 0)}
    assert changed.pop(("dray_generation_tokens_total", POET)) == 9
    assert set(changed.values()) == {1}
    assert {name for _, name in changed} == {POET}


def test_a_batch_is_written_by_the_adapter_that_all_its_lines_name(endpoint: Endpoint) -> None:
    lines = [line(number, model=POET, temperature=1) for number in range(6)]
    bodies = [{name: value for name, value in each["body"].items() if name != "model"} for each in lines]
    with endpoint.client() as client:
        batch = ended(client, begin(client, lines))
        assert (batch.status, batch.to_dict()["model"]) == ("completed", POET)
        written = texts(results(client, batch.output_file_id))
        assert list(written.values()) == [text for (text,) in endpoint.alone[POET].texts_of(bodies)]
        (run,) = Path(endpoint.sections["serve"]["batches_path"]).glob(f"*/batches/{batch.id}/run/run.json")
        said = json.loads(run.read_text())
        said = said.get("content", said)
        assert said["settings"]["models"]["target"] == endpoint.sections["serve"]["adapters"][POET]
        assert said["models"]["target"] == endpoint.alone[POET].settings.models.target
        mixed = ended(client, begin(client, [line(0, model=POET), line(1, model=PIRATE)]))
        assert mixed.status == "failed"
        assert mixed.errors is not None
        assert [(error.code, error.line) for error in mixed.errors.data or ()] == [("mismatched_model", 2)]


def test_an_adapter_whose_engine_is_killed_resumes_and_the_other_models_answer_meanwhile(endpoint: Endpoint) -> None:
    bodies = [{**LONG, "model": POET, "seed": seed, "stream": True} for seed in range(3)]
    others = [{**LONG, "model": name, "seed": 4, "max_tokens": 20} for name in (BASE, PIRATE)]

    async def scenario() -> tuple[list[Asked], list[Asked], bool]:
        async with endpoint.raw_client() as client:
            asked = [Asked(client, body) for body in bodies]
            await asyncio.gather(*(one.reached(1) for one in asked))
            (victim,) = replica_pids(POET)
            kill(victim)
            found = [Asked(client, body) for body in others]
            await asyncio.gather(*(one.end() for one in found))
            were_open = not any(one.is_over for one in asked)
            await asyncio.gather(*(one.end() for one in asked))
            return asked, found, were_open

    asked, found, were_open = asyncio.run(scenario())
    assert were_open, "killed too late"
    assert [one.error for one in (*asked, *found)] == [None] * 5
    for one in (*asked, *found):
        own = {name: value for name, value in one.body.items() if name not in ("model", "stream")}
        assert one.text == endpoint.alone[one.body["model"]].texts_of([own])[0][0]


def test_another_draft_replaces_no_engine_of_any_model_and_changes_no_text(endpoint: Endpoint) -> None:
    wait_until(lambda: all(len(replica_pids(name)) == 1 for name in (None, PIRATE, POET)), 180, every_s=0.1)
    before = {name: replica_pids(name) for name in (None, PIRATE, POET)}
    draft = endpoint.sections["models"]["draft"]
    other = str(shutil.copytree(draft, endpoint.folder / "other-draft"))
    config, models, deployment = endpoint.models(models={**endpoint.sections["models"], "draft": other})
    application = serving._with_other_draft(config, models, deployment, "mark")
    assert application is not None
    deploy(application)
    assert deployed_version().draft == other  # type: ignore[union-attr]
    for name in (None, PIRATE, POET):
        wait_until(lambda at=name: [each.draft_version for each in engine_stats(at)] == [1])  # type: ignore[misc]
    assert {name: replica_pids(name) for name in before} == before
    check_texts(endpoint)


def test_one_more_adapter_is_served_after_an_update_that_fails_no_request(
    endpoint: Endpoint, text_pair: tuple[str, str]
) -> None:
    adapters: Mapping[str, str] = endpoint.sections["serve"]["adapters"]
    more = {**adapters, "bard": save_adapter(text_pair[0], endpoint.folder / "bard", 9)}
    config, models, deployment = endpoint.models(serve={"adapters": more})
    assert serving._with_other_draft(config, models, deployment, "mark") is None, "it is more than another draft"

    async def scenario() -> list[Asked]:
        async with endpoint.raw_client() as client:
            updating = asyncio.ensure_future(asyncio.to_thread(endpoint.deploy, serve={"adapters": more}))
            asked: list[Asked] = []
            while not updating.done():
                asked.append(Asked(client, {**LONG, "model": (BASE, PIRATE, POET)[len(asked) % 3], "seed": len(asked)}))
                await asked[-1].end()
            await updating
            return asked

    asked = asyncio.run(scenario())
    assert [one.error for one in asked if not one.has_succeeded] == []
    for one in asked[-6:]:
        own = {name: value for name, value in one.body.items() if name != "model"}
        assert one.text == endpoint.alone[one.body["model"]].texts_of([own])[0][0]
    assert "bard" in endpoint.alone
    check_texts(endpoint)


def check_texts(endpoint: Endpoint) -> None:
    wanted = expected(endpoint, REQUESTS)
    with endpoint.client() as client:
        for name, own in wanted.items():
            found = [client.completions.create(model=name, **request).choices[0].text for request in REQUESTS]
            assert found == own
