"""Ingress: the application in a Ray Serve deployment, in front of the replicas."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from actors.settings import GeneratorSettings
from actors.workers.loading import load_codec
from endpoint.answers.text import warn_of_late_text
from endpoint.app import create_app
from endpoint.edge.install import EdgeSettings, install
from endpoint.service.backend import Replicas
from endpoint.service.meter import RequestMeter
from endpoint.service.metrics import ServingMetrics
from endpoint.service.service import Service, ServiceSettings
from pipeline.logs import LogSettings, set_up_logs


class Ingress:
    """Has the tokenizer and the keys, and asks the replicas for tokens. `ray.serve.ingress()` makes it a deployment."""

    async def __init__(  # type: ignore[misc]
        self,
        settings: GeneratorSettings,
        service_settings: ServiceSettings,
        edge_settings: EdgeSettings,
        log_settings: LogSettings,
        replicas: Any,
        most_requests: int,
        engine_fingerprint: str = "",
    ) -> None:
        """`replicas` is the handle of the replicas' deployment.

        They take so many requests at once, at most, and the fingerprint is theirs. As long as there are only replicas
        of another model, which an update replaces, this takes: Ray Serve leaves requests to the ingress before.
        """
        set_up_logs(log_settings)
        backend = Replicas(
            replicas,
            is_repeatable=settings.engine.verification == "coupled",
            fingerprint=engine_fingerprint,
            most_requests=most_requests,
        )
        metrics = ServingMetrics(service_settings.model, to_ray=True)
        codec = load_codec(settings)
        warn_of_late_text(codec)
        service = Service(service_settings, codec, backend, lambda: RequestMeter(metrics))
        await backend.until_there()
        self._app = create_app(service, has_docs=edge_settings.has_docs)
        install(self._app, edge_settings, metrics, most_requests)

    def reconfigure(self, config: dict[str, str]) -> None:
        """Nothing: what is in it is for `endpoint.deployment.deployed_mark`."""

    def __serve_build_asgi_app__(self) -> FastAPI:
        """What Ray Serve runs."""
        return self._app
