"""The real application and edge over an engine of this process, behind a real HTTP server: everything but Ray."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import openai

from actors.engine.translation import decode_row, encode_row
from actors.engines.loading import load_codec
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings, ReplicaSettings
from actors.workers.replica import Replica
from decoding import Engine, EngineOptions
from endpoint.app import create_app
from endpoint.batches.batch import BatchSettings
from endpoint.batches.service import BatchService
from endpoint.edge.headers import Keys
from endpoint.edge.install import EdgeSettings, install
from endpoint.service.backend import Replicas
from endpoint.service.metrics import Family, ServingMetrics
from endpoint.service.service import Models, Service, ServiceSettings
from pipeline.text.codec import TextCodec
from tests.endpoint.batches.driving import Driving, batch_model
from tests.endpoint.local_handle import LocalHandle
from tests.endpoint.toy_app import KEY
from tests.endpoint.web import served
from tests.pipeline.made_up import input_row

MODEL, CONTEXT = "tests/tiny", 96
BUNDLED, BUNDLED_MODEL = Path(__file__).parents[2] / "examples" / "tiny_pair", "some/pair"


def settings_of(pair: tuple[str, str], **options: Any) -> GeneratorSettings:
    """Return the settings of an engine that drafts; its text must be that of one that does not."""
    values = {"num_slots": 4, "num_speculative_tokens": 3, "draft_length": "fixed", "max_model_len": CONTEXT}
    return GeneratorSettings(
        models=ModelSettings(target=pair[0], draft=pair[1], device="cpu", dtype="float32"),
        engine=EngineSettings(**{**values, **options}),
    )


@dataclass(frozen=True)
class Running:
    """A running endpoint, and the target alone, which writes the texts that its texts are compared with."""

    port: int
    settings: GeneratorSettings

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.port}"

    @cached_property
    def plain(self) -> Engine:
        """The target alone."""
        options = EngineOptions(num_slots=16, drafter="none", max_model_len=self.settings.engine.max_model_len)
        return Engine.load(self.settings.models.target, None, options, device="cpu", dtype="float32")

    @cached_property
    def codec(self) -> TextCodec:
        """The model's tokenizer."""
        return load_codec(self.settings)

    def client(self, **options: Any) -> openai.OpenAI:
        """Return the official client, which does not try again unless it is told to."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, **{"max_retries": 0, **options})

    def rows_of(self, requests: Sequence[dict[str, Any]], engine: Engine | None = None) -> list[list[Any]]:
        """Return the generation rows that the offline job writes for each request, which run side by side.

        They run on this engine, or on the target alone.
        """
        encoded = []
        for request in requests:
            own = {name: request.get(name) for name in ("prompt", "messages")}
            overrides = {name: value for name, value in request.items() if name not in (*own, "stream")}
            encoded.append(encode_row(input_row(**own, overrides=overrides), 0, self.codec, self.settings))
        for _ in (engine or self.plain).stream([sequence for row in encoded for sequence in row.sequences]):
            pass
        return [decode_row(row, self.codec) for row in encoded]

    def offline(self, prompt: str | None = None, **request: Any) -> list[Any]:
        """Return the same for one request."""
        return self.rows_of([{"prompt": prompt, **request}])[0]

    def texts_of(self, requests: Sequence[dict[str, Any]]) -> list[list[str]]:
        """Return the texts of the samples that the offline job writes for each request."""
        return [[sample["text"] for sample in samples] for samples in self.rows_of(requests)]


@dataclass(frozen=True)
class Server(Running):
    """The endpoint in this process."""

    service: Service
    replica: Replica


def answered(api: Any, **request: Any) -> Any:
    """Return the whole answer to a completion or chat."""
    return api.create(model=MODEL, **request)


def streamed(api: Any, **request: Any) -> tuple[dict[int, str], list[Any]]:
    """Return the text of each choice of a streamed completion or chat, and all chunks."""
    return streamed_of(api, model=MODEL, **request)


def streamed_of(api: Any, **request: Any) -> tuple[dict[int, str], list[Any]]:
    """Return the same of the model that the request names."""
    texts: dict[int, str] = {}
    chunks = list(api.create(stream=True, **request))
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        text = choice.delta.content if hasattr(choice, "delta") else choice.text
        texts[choice.index] = texts.get(choice.index, "") + (text or "")
    return texts, chunks


def local_backend(replica: Replica) -> Replicas:
    """Return the backend over one replica, which is in this process."""
    return Replicas(LocalHandle(replica), is_repeatable=False)


@contextmanager
def running_server(
    settings: GeneratorSettings,
    service_settings: ServiceSettings,
    edge_settings: EdgeSettings,
    batch_settings: BatchSettings | None = None,
    adapters: Mapping[str, GeneratorSettings] | None = None,
    replica_settings: ReplicaSettings | None = None,
) -> Iterator[Server]:
    """Run the server until the block ends, with the Batch API if it has settings, and with these adapters."""
    metrics, codec = ServingMetrics(service_settings.names[0]), load_codec(settings)
    replica = Replica(settings, replica_settings)
    service, batches = Service(service_settings, codec, local_backend(replica), metrics), None
    if batch_settings is not None:
        driving = Driving([batch_model(settings, codec, service_settings, replica)], batch_settings)
        batches = BatchService(batch_settings, service_settings.names[:1], driving.wake)
        edge_settings = replace(edge_settings, max_upload_bytes=batch_settings.max_file_bytes)
    others = [
        Service(
            ServiceSettings(model=name, parent=service_settings.names[0]),
            load_codec(own),
            local_backend(Replica(own)),
            ServingMetrics(name),
        )
        for name, own in (adapters or {}).items()
    ]

    async def all_families() -> list[Family]:
        return [family for each in (service, *others) for family in each.metrics.families()]

    app = create_app(Models(service, *others), batches=batches, has_docs=edge_settings.has_docs)
    install(app, edge_settings, metrics, all_families=all_families)
    with served(app) as port:
        yield Server(port, settings, service, replica)


@contextmanager
def closed_server(
    pair: tuple[str, str], model: str, max_model_len: int | None = None, batch_settings: BatchSettings | None = None
) -> Iterator[Server]:
    """Run the server with its page, closed with `KEY` and with standard limits."""
    settings = settings_of(pair, num_speculative_tokens=4, max_model_len=max_model_len)
    edge_settings = EdgeSettings(keys=Keys([KEY]), has_page=True)
    with running_server(settings, ServiceSettings(model=model), edge_settings, batch_settings) as server:
        yield server


def bundled_server(model: str = BUNDLED_MODEL) -> Any:
    """Run `closed_server` over the bundled pair, as a context manager."""
    return closed_server((str(BUNDLED / "target"), str(BUNDLED / "draft")), model)


def open_server(model: str, page_examples: tuple[str, ...]) -> Any:
    """Run the server over the bundled pair without keys, as a context manager; its page offers these examples."""
    pair = str(BUNDLED / "target"), str(BUNDLED / "draft")
    settings = settings_of(pair, num_speculative_tokens=4, max_model_len=None)
    edge_settings = EdgeSettings(keys=None, has_page=True, page_examples=page_examples)
    return running_server(settings, ServiceSettings(model=model, exact="proved"), edge_settings)
