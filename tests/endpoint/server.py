"""The application with its edge over a real engine, in a thread of this process, behind a real HTTP server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai
import uvicorn

from actors.engine.translation import decode_row, encode_row
from actors.settings import GeneratorSettings, ModelSettings
from actors.workers.loading import load_codec
from actors.workers.replica import Replica, ReplicaSettings
from decoding import Engine, EngineOptions
from endpoint.app import create_app
from endpoint.edge.install import EdgeSettings, install
from endpoint.service.backend import Backend
from endpoint.service.metrics import ServingMetrics
from endpoint.service.service import Service, ServiceSettings
from tests.pipeline.made_up import input_row

MODEL = "tests/tiny"
CONTEXT = 96


def settings_of(pair: tuple[str, str], **options: Any) -> GeneratorSettings:
    """Of an engine that drafts: its text is to be that of one that does not."""
    values = {"num_slots": 4, "num_speculative_tokens": 3, "draft_length": "fixed", "max_model_len": CONTEXT}
    return GeneratorSettings(
        models=ModelSettings(target=pair[0], draft=pair[1], device="cpu", dtype="float32"),
        engine=EngineOptions(**{**values, **options}),
    )


@dataclass(frozen=True)
class Server:
    """A running server, and what its texts are compared with."""

    url: str
    service: Service
    loop: asyncio.AbstractEventLoop
    settings: GeneratorSettings
    plain: Engine  # the target alone

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client, which does not try again."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0, **options)

    def offline(self, prompt: str | None = None, messages: list[Any] | None = None, **overrides: Any) -> list[Any]:
        """The generation rows that the offline job writes for a row, by the target alone."""
        row = input_row(prompt=prompt, messages=messages, overrides=overrides)
        encoded = encode_row(row, 0, self.service.codec, self.settings)
        for _ in self.plain.stream(encoded.sequences):
            pass
        return decode_row(encoded, self.service.codec)


@contextmanager
def running_server(
    settings: GeneratorSettings, replica: Replica | Backend | None = None, **replica_settings: Any
) -> Iterator[Server]:
    """The server, until the block ends."""
    replica = replica or Replica(settings, ReplicaSettings(**replica_settings))
    service = Service(
        ServiceSettings(model=MODEL, aliases=("tiny",), fingerprint="fp_1", max_choices=16),
        load_codec(settings),
        replica,
    )
    app = create_app(service, has_docs=True)
    install(app, EdgeSettings(keys=None, has_docs=True), ServingMetrics(MODEL))
    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    loop = asyncio.new_event_loop()
    is_up = threading.Event()

    async def serve() -> None:
        serving = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        is_up.set()
        await serving

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert is_up.wait(60)
    port = server.servers[0].sockets[0].getsockname()[1]
    plain = Engine.load(
        settings.models.target,
        None,
        EngineOptions(num_slots=2, drafter="none", max_model_len=CONTEXT),
        device="cpu",
        dtype="float32",
    )
    try:
        yield Server(f"http://127.0.0.1:{port}", service, loop, settings, plain)
    finally:
        server.should_exit = True
        thread.join(60)
