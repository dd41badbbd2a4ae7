"""The whole endpoint over an engine of this process: the real application and edge, a real pair, and no Ray."""

from collections.abc import Iterator
from contextlib import contextmanager

from actors.settings import GeneratorSettings, ModelSettings
from actors.workers.loading import load_codec
from actors.workers.replica import Replica, ReplicaSettings
from decoding.engine.options import EngineOptions
from endpoint.app import create_app
from endpoint.edge.auth import Keys
from endpoint.edge.install import EdgeSettings, install
from endpoint.http.bodies import Limits
from endpoint.service.meter import RequestMeter
from endpoint.service.metrics import ServingMetrics
from endpoint.service.service import Service, ServiceSettings
from tests.endpoint.toy_app import KEY
from tests.endpoint.web import served

MODEL = "some/pair"


@contextmanager
def pair_served(
    target: str,
    draft: str,
    *,
    limits: Limits | None = None,
    max_model_len: int | None = None,
    has_page: bool = False,
    model: str = MODEL,
) -> Iterator[int]:
    """The port of an endpoint whose key is `KEY`."""
    settings = GeneratorSettings(
        models=ModelSettings(target=target, draft=draft, device="cpu", dtype="float32"),
        engine=EngineOptions(num_slots=4, num_speculative_tokens=4, draft_length="fixed", max_model_len=max_model_len),
    )
    metrics = ServingMetrics(model)
    replica = Replica(settings, ReplicaSettings())
    service = Service(ServiceSettings(model=model), load_codec(settings), replica, lambda: RequestMeter(metrics))
    app = create_app(service)
    install(app, EdgeSettings(keys=Keys([KEY]), limits=limits or Limits(), has_page=has_page), metrics)
    with served(app) as port:
        yield port
