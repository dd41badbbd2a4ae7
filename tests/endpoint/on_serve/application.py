"""The application on Ray Serve: real processes, real HTTP, and what its texts are compared with."""

import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import psutil
import pytest
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.exceptions import DeploymentUnavailableError

from actors.engine.loop import EngineStats
from actors.settings import GeneratorSettings
from actors.workers.replica import Replica, ReplicaSettings
from decoding.sequence import Sequence
from endpoint.batches.batch import BatchSettings
from endpoint.deployment import (
    APP_NAME,
    REPLICA_NAME,
    DeployedVersion,
    DeploymentSettings,
    deploy,
    make_application,
    start,
    withdraw,
)
from endpoint.edge.headers import Keys
from endpoint.edge.install import EdgeSettings
from endpoint.http.bodies import Limits
from endpoint.service.served_model import ServedModel, deployment_name
from endpoint.service.service import ServiceSettings
from pipeline.logs import LogSettings
from tests.endpoint.asking import Asked
from tests.endpoint.in_process import MODEL, Running, settings_of
from tests.endpoint.toy_app import BEARER, KEY
from tests.endpoint.web import ask, samples_of
from tests.jobs.runs import wait_until

CONTEXT, MAX_WAITING, NUM_SLOTS, NUM_REPLICAS, NUM_INGRESSES = 256, 4, 4, 2, 2
CAPACITY = NUM_REPLICAS * (NUM_SLOTS + MAX_WAITING)  # requests that are taken at once
LONG: dict[str, Any] = {"prompt": "hello world", "max_tokens": 240, "ignore_eos": True}  # a text as long as fits
POISON, SLOW = 97, 98  # token ids in a prompt for a FragileReplica
_STEP_SECONDS = 0.1
_DRAIN_S = 10


class FragileReplica(Replica):
    """A replica that ends its process in the step that reads `POISON`; that step and one with `SLOW` take 0.1 s."""

    def __init__(self, *arguments: Any, **values: Any) -> None:
        """Load the models as a Replica does."""
        super().__init__(*arguments, **values)
        engine = self._loop.engine
        step = engine.step

        def watched() -> list[Sequence]:
            token_ids = {
                token_id
                for sequence in (*engine.in_flight, *engine.up_next())
                for token_id in sequence.prompt_token_ids
            }
            if not token_ids.isdisjoint({POISON, SLOW}):
                time.sleep(_STEP_SECONDS)  # a large model's step takes as long
            if POISON in token_ids:
                os._exit(9)
            return step()

        engine.step = watched  # type: ignore[method-assign]


@dataclass(frozen=True)
class Served(Running):
    """The deployed endpoint."""

    num_replicas: int = NUM_REPLICAS
    num_ingresses: int = 1  # with several, `metric` would be that of any

    def raw_client(self) -> httpx2.AsyncClient:
        """Return a client with as many connections as are wanted."""
        limits = httpx2.Limits(max_connections=None)
        return httpx2.AsyncClient(base_url=self.url, headers=BEARER, timeout=300, limits=limits)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of an ingress's samples with these labels; 0 while it has counted nothing."""
        samples = samples_of(ask(self.port, "/metrics", headers=BEARER).body)
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def expected(self, asked: Iterable[Asked]) -> list[str]:
        """Return the text that each of these completions of `LONG` must have."""
        return [text for (text,) in self.texts_of([{**LONG, "seed": one.body["seed"]} for one in asked])]

    def check(self, asked: Iterable[Asked]) -> None:
        """Check that each of these completions of `LONG` has succeeded with its exact text."""
        asked = list(asked)
        assert [(one.status, one.error) for one in asked if not one.has_succeeded] == []
        assert [one.text for one in asked] == self.expected(asked)

    def application(
        self,
        settings: GeneratorSettings | None = None,
        version: DeployedVersion | None = None,
        batch_settings: BatchSettings | None = None,
        fingerprint: str = "fp_own",
        adapters: Mapping[str, GeneratorSettings] | None = None,
        **replica_settings: Any,
    ) -> Any:
        """Return what `deploy` takes, of this model unless another one's `settings` are given.

        `adapters` are served beside it, with a fingerprint of their own each.
        """
        own = settings or self.settings
        models = [ServedModel(settings=own, service=ServiceSettings(model=MODEL), fingerprint=fingerprint)]
        models += [
            ServedModel(
                settings=of_adapter,
                service=ServiceSettings(model=name, parent=MODEL),
                fingerprint=f"fp_{name}",
                target=f"/adapters/{name}",
            )
            for name, of_adapter in (adapters or {}).items()
        ]
        return make_application(
            models,
            EdgeSettings(keys=Keys([KEY])),
            ReplicaSettings(**{"max_waiting": MAX_WAITING, **replica_settings}),
            DeploymentSettings(
                min_replicas=self.num_replicas,
                max_replicas=self.num_replicas,
                num_ingresses=self.num_ingresses,
                num_cpus=0.5,
                drain_timeout_s=_DRAIN_S,
            ),
            LogSettings(level="warning"),
            version=version,
            batch_settings=batch_settings,
        )

    def wait_until_idle(self) -> None:
        """Return when no engine has anything to do."""
        wait_until(lambda: all(n.num_running == n.num_waiting == 0 for n in engine_stats()), every_s=0.1)

    def wait_until_whole(self) -> None:
        """Return when all replicas are there and answer."""
        wait_until(lambda: len(replica_pids()) == len(engine_stats()) == self.num_replicas, 180, every_s=0.1)


@contextmanager
def running_serve(limits: Limits) -> Iterator[int]:
    """Start Ray Serve with the gate before its proxy and no application, until the block ends; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    start("127.0.0.1", port, limits)
    try:
        yield port
    finally:
        serve.shutdown()


def served_at(port: int, pair: tuple[str, str]) -> Served:
    """Return the endpoint on the Serve at `port`, which is not deployed yet."""
    settings = settings_of(pair, num_slots=NUM_SLOTS, max_model_len=CONTEXT)
    return Served(port, settings, num_ingresses=NUM_INGRESSES)


@contextmanager
def serving_fragile(port: int, pair: tuple[str, str], num_replicas: int, **options: Any) -> Iterator[Served]:
    """Deploy the endpoint over fragile replicas that let many requests wait, until the block ends."""
    running = Served(port, settings_of(pair, **{"max_model_len": CONTEXT, **options}), num_replicas)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("endpoint.deployment.Replica", FragileReplica)
        application = running.application(max_waiting=40)
    deploy(application)
    try:
        yield running
    finally:
        take_away()


def take_away() -> None:
    """Withdraw the application, if it is there."""
    if APP_NAME in serve.status().applications:
        withdraw(drain_timeout_s=_DRAIN_S)


def engine_stats(adapter: str | None = None) -> list[EngineStats]:
    """Return what each replica's engine does now; replicas that have just died are left out."""
    replicas = serve.get_deployment_handle(deployment_name(REPLICA_NAME, adapter), APP_NAME)
    try:
        stats = replicas.broadcast("stats").results(timeout_s=60, return_exceptions=True)
    except DeploymentUnavailableError:  # all of them have
        return []
    return [each for each in stats if isinstance(each, EngineStats)]


def pids(deployment: str) -> list[int]:
    """Return the processes of a deployment that Serve takes for running."""
    replicas = _get_global_client().get_serve_details()["applications"][APP_NAME]["deployments"][deployment]["replicas"]
    return [replica["pid"] for replica in replicas if replica["state"] == "RUNNING"]


def replica_pids(adapter: str | None = None) -> list[int]:
    """Return the processes that have an engine, of the endpoint's own model or of an adapter."""
    return pids(deployment_name(REPLICA_NAME, adapter))


def is_alive(pid: int) -> bool:
    """Tell whether a process still runs."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def kill(pid: int) -> None:
    """End a process as the kernel does when memory runs out."""
    os.kill(pid, signal.SIGKILL)
