"""The endpoint on the one Ray Serve of all tests: its client, its replicas one by one, and what their texts must be."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families
from ray import serve
from ray.serve.schema import ApplicationStatus

from actors.engine.loop import EngineNumbers
from actors.settings import GeneratorSettings
from actors.workers.loading import load_codec
from actors.workers.replica import ReplicaSettings
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from endpoint.deployment import APP_NAME, DeploymentSettings, deploy, make_application, withdraw
from endpoint.edge.auth import Keys
from endpoint.edge.install import EdgeSettings
from endpoint.service.service import ServiceSettings
from pipeline.logs import LogSettings
from tests.endpoint.fragile import Fragile
from tests.endpoint.server import MODEL, settings_of
from tests.endpoint.toy_app import BEARER, KEY
from tests.endpoint.web import ask

NAMESPACE = "serve"


@dataclass(frozen=True)
class Served:
    """An endpoint that is deployed."""

    port: int
    settings: GeneratorSettings
    plain: Engine  # the target alone

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client, which does not try again unless told to."""
        url = f"http://127.0.0.1:{self.port}/v1"
        return openai.OpenAI(base_url=url, api_key=KEY, **{"max_retries": 0, "timeout": 300, **options})

    def expected(self, prompt: list[int], *seeds: int, **params: Any) -> list[str]:
        """What the target alone writes with each seed. For one thread at a time."""
        sequences = [Sequence.create(prompt, SamplingParams(seed=seed, **params)) for seed in seeds]
        for _ in self.plain.stream(sequences):
            pass
        codec = load_codec(self.settings)
        return [codec.decode(sequence.output_token_ids) for sequence in sequences]

    def metric(self, name: str, **labels: str) -> float:
        """A counter of the ingress; 0 while it has counted nothing."""
        page = ask(self.port, "/metrics", headers=BEARER).body.decode()
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        wanted = [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
        return sum(wanted)


def replica_names() -> set[str]:
    """Of the engines' actors, those that start or end among them."""
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    return {name for name in names if name.startswith("SERVE_REPLICA") and f"{APP_NAME}#Replica" in name}


def numbers() -> list[EngineNumbers]:
    """What each engine does now."""
    return [ray.get(_actor(name).__ray_call__.remote(_numbers)) for name in sorted(replica_names())]


def alive() -> set[str]:
    """The engines' actors that answer."""
    return {name for name in replica_names() if _answers(name)}


def _answers(name: str) -> bool:
    try:
        return bool(ray.get(_actor(name).__ray_call__.remote(_pid), timeout=30))
    except (ray.exceptions.RayError, ValueError):  # it is dead, or was while we looked
        return False


def kill(name: str) -> None:
    """SIGKILL to the process of an engine."""
    os.kill(ray.get(_actor(name).__ray_call__.remote(_pid)), signal.SIGKILL)


def until(is_so: Callable[[], Any], patience_s: float = 60.0) -> float:
    """Look again and again until it is so; how many seconds that took."""
    started = time.monotonic()
    while not is_so():
        assert time.monotonic() < started + patience_s, "it does not come to be so"
    return time.monotonic() - started


def is_up() -> bool:
    """Whether all replicas that are wanted are there."""
    application = serve.status().applications.get(APP_NAME)
    return application is not None and application.status == ApplicationStatus.RUNNING


@contextmanager
def serving(
    port: int, pair: tuple[str, str], *, num_replicas: int, max_waiting: int = 40, **options: Any
) -> Iterator[Served]:
    """The endpoint over `Fragile` replicas, until the block ends. `options` are of the engine."""
    settings = settings_of(pair, **{"max_model_len": 256, **options})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("endpoint.deployment.Replica", Fragile)
        application = make_application(
            settings,
            ServiceSettings(model=MODEL),
            EdgeSettings(keys=Keys([KEY])),
            ReplicaSettings(max_waiting=max_waiting),
            DeploymentSettings(min_replicas=num_replicas, max_replicas=num_replicas, num_cpus=0.5, drain_timeout_s=60),
            LogSettings(level="warning"),
        )
    deploy(application)
    plain = Engine.load(
        pair[0],
        None,
        EngineOptions(num_slots=20, drafter="none", max_model_len=settings.engine.max_model_len),
        device="cpu",
        dtype="float32",
    )
    try:
        yield Served(port, settings, plain)
    finally:
        withdraw(drain_timeout_s=10)


def _actor(name: str) -> Any:
    return ray.get_actor(name, namespace=NAMESPACE)


def _numbers(actor: Any) -> EngineNumbers:
    replica: Fragile = actor._replica_impl._user_callable_wrapper._callable
    return replica.numbers()


def _pid(actor: Any) -> int:
    return os.getpid()
