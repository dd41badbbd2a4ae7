"""Ingress: the application in a Ray Serve deployment, in front of the replicas."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from actors.generator import load_codec
from actors.settings import GeneratorSettings
from endpoint.app import create_app
from endpoint.backend import Replicas
from endpoint.service import Service, ServiceSettings
from pipeline.logs import LogSettings, set_up_logs


class Ingress:
    """Has the tokenizer, and asks the replicas for tokens. `ray.serve.ingress()` makes it a deployment."""

    def __init__(
        self,
        settings: GeneratorSettings,
        service_settings: ServiceSettings,
        log_settings: LogSettings,
        replicas: Any,
        has_docs: bool = False,
    ) -> None:
        """`replicas` is the handle of the replicas' deployment."""
        set_up_logs(log_settings)
        backend = Replicas(replicas, is_repeatable=settings.engine.verification == "coupled")
        service = Service(service_settings, load_codec(settings), backend)
        self._app = create_app(service, has_docs=has_docs)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """What Ray Serve runs."""
        return self._app
