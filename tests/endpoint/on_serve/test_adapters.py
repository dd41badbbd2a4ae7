"""Several adapters on Ray Serve: each name writes its own target's text, and none is in another one's way."""

import asyncio
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from endpoint.deployment import deploy, deployed_version
from endpoint.service.served_model import ServedModel
from jobs.config.serve import load_serve_config
from jobs.work import serving
from tests.adapted import keep_merged_models_in, save_adapter
from tests.endpoint.adapter_checks import BASE, PIRATE, POET, Adapted, check_texts
from tests.endpoint.asking import Asked
from tests.endpoint.batches.asking import begin, ended, line, results, texts
from tests.endpoint.in_process import Running
from tests.endpoint.on_serve.application import engine_stats, kill, replica_pids, take_away
from tests.jobs.runs import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
LONG: dict[str, Any] = {"prompt": "hello world", "max_tokens": 200, "ignore_eos": True}


@dataclass(frozen=True)
class Endpoint(Adapted):
    """The deployed endpoint and its configuration."""

    folder: Path
    sections: dict[str, Any]

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
        found = Endpoint(serve_port, {}, folder, sections)
        found.deploy()
        try:
            yield found
        finally:
            take_away()


def test_a_batch_is_written_by_the_adapter_that_all_its_lines_name(endpoint):
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


def test_an_adapter_whose_engine_is_killed_resumes_and_the_other_models_answer_meanwhile(endpoint):
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


def test_another_draft_replaces_no_engine_of_any_model_and_changes_no_text(endpoint):
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


@pytest.mark.slow
def test_one_more_adapter_is_served_after_an_update_that_fails_no_request(endpoint, text_pair):
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
