"""A pair on Ray Serve: two replicas, real processes, real HTTP, and what its texts are compared with."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
from ray import serve
from ray.serve.context import _get_global_client

from actors.engine.loop import EngineNumbers
from actors.engine.translation import decode_row, encode_row
from actors.settings import GeneratorSettings
from actors.workers.loading import load_codec
from actors.workers.replica import ReplicaSettings
from decoding import Engine, EngineOptions
from endpoint.deployment import APP_NAME, DeploymentSettings, deploy, make_application, withdraw
from endpoint.edge.auth import Keys
from endpoint.edge.install import EdgeSettings
from endpoint.service.service import ServiceSettings
from pipeline.logs import LogSettings
from tests.endpoint.server import MODEL, settings_of
from tests.endpoint.toy_app import BEARER, KEY
from tests.jobs.runs import wait_until
from tests.pipeline.made_up import input_row

CONTEXT, MAX_WAITING, NUM_SLOTS, NUM_REPLICAS = 256, 4, 4, 2
CAPACITY = NUM_REPLICAS * (NUM_SLOTS + MAX_WAITING)  # requests that are taken at once
LONG: dict[str, Any] = {"prompt": "hello world", "max_tokens": 240, "ignore_eos": True}  # a text as long as fits
_DRAIN_S = 10


@dataclass(frozen=True)
class Deployed:
    """The endpoint, and the target alone."""

    port: int
    settings: GeneratorSettings
    plain: Engine

    @property
    def url(self) -> str:
        """Of the server."""
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client, which does not try again unless it is told to."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, **{"max_retries": 0, **options})

    def raw_client(self) -> httpx2.AsyncClient:
        """For as many connections as are wanted."""
        limits = httpx2.Limits(max_connections=None)
        return httpx2.AsyncClient(base_url=self.url, headers=BEARER, timeout=300, limits=limits)

    def offline(self, prompt: str | None = None, messages: list[Any] | None = None, **overrides: Any) -> list[str]:
        """The texts of the samples that the offline job writes for a row, by the target alone."""
        return self.offline_of([{"prompt": prompt, "messages": messages, **overrides}])[0]

    def offline_of(self, requests: list[dict[str, Any]]) -> list[list[str]]:
        """The same for several rows, which run side by side."""
        codec = load_codec(self.settings)
        encoded = []
        for request in requests:
            own = {name: request.get(name) for name in ("prompt", "messages")}
            overrides = {name: value for name, value in request.items() if name not in own}
            encoded.append(encode_row(input_row(**own, overrides=overrides), 0, codec, self.settings))
        for _ in self.plain.stream([sequence for row in encoded for sequence in row.sequences]):
            pass
        return [[sample["text"] for sample in decode_row(row, codec)] for row in encoded]

    def application(self, settings: GeneratorSettings | None = None, **replica_settings: Any) -> Any:
        """What `deploy` takes, of this model unless another one's `settings` are given."""
        return make_application(
            settings or self.settings,
            ServiceSettings(model=MODEL),
            EdgeSettings(keys=Keys([KEY])),
            ReplicaSettings(**{"max_waiting": MAX_WAITING, "fingerprint": "fp_own", **replica_settings}),
            DeploymentSettings(
                min_replicas=NUM_REPLICAS, max_replicas=NUM_REPLICAS, num_cpus=0.5, drain_timeout_s=_DRAIN_S
            ),
            LogSettings(level="warning"),
        )

    def wait_until_idle(self) -> None:
        """Return when no engine has anything to do any more."""
        wait_until(lambda: all(n.num_running == n.num_waiting == 0 for n in engine_numbers()), every_s=0.1)

    def wait_until_whole(self) -> None:
        """Return when all replicas are there and write."""
        wait_until(lambda: len(replica_pids()) == len(engine_numbers()) == NUM_REPLICAS, every_s=0.1)


@contextmanager
def deployed_pair(port: int, pair: tuple[str, str]) -> Iterator[Deployed]:
    """The endpoint on the Serve that listens at `port`, until the block ends."""
    settings = settings_of(pair, num_slots=NUM_SLOTS, max_model_len=CONTEXT)
    options = EngineOptions(num_slots=16, drafter="none", max_model_len=CONTEXT)
    running = Deployed(port, settings, Engine.load(settings.models.target, None, options))
    deploy(running.application())
    yield running
    take_away()


def take_away() -> None:
    """Withdraw the application, if it is there."""
    if APP_NAME in serve.status().applications:
        withdraw(drain_timeout_s=_DRAIN_S)


def engine_numbers() -> list[EngineNumbers]:
    """What each replica's engine does now."""
    replicas = serve.get_deployment_handle("Replica", APP_NAME)
    numbers = replicas.broadcast("numbers").results(timeout_s=60, return_exceptions=True)
    return [number for number in numbers if isinstance(number, EngineNumbers)]  # others have just died


def pids(deployment: str) -> list[int]:
    """The processes of the deployment's replicas that run."""
    applications = _get_global_client().get_serve_details()["applications"]
    replicas = applications[APP_NAME]["deployments"][deployment]["replicas"]
    return [replica["pid"] for replica in replicas if replica["state"] == "RUNNING"]


def replica_pids() -> list[int]:
    """The processes that have an engine."""
    return pids("Replica")


def kill(pid: int) -> None:
    """End a process as the kernel does when memory runs out."""
    os.kill(pid, signal.SIGKILL)
