"""Ingress: the application as a Ray Serve deployment, in front of the replicas."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.exceptions import DeploymentUnavailableError

from actors.engines import backend_of
from actors.engines.loading import load_codec
from endpoint.answers.text import warn_of_late_text
from endpoint.app import create_app
from endpoint.batches.batch import BatchSettings
from endpoint.batches.process import wake
from endpoint.batches.service import BatchService
from endpoint.edge.install import EdgeSettings, install
from endpoint.service.backend import Replicas
from endpoint.service.metrics import Family, ServingMetrics, of_engines, of_process
from endpoint.service.served_model import ServedModel
from endpoint.service.service import Models, Service
from pipeline.logs import LogSettings, set_up_logs
from pipeline.ray_internals import keep_serve_on_loopback

_ANSWER_S = 2.0  # for other processes to say what they have counted


class Ingress:
    """The application with the tokenizers and the keys, which asks the replicas for tokens.

    `ray.serve.ingress()` makes it a deployment.
    """

    async def __init__(  # type: ignore[misc]
        self,
        models: Sequence[ServedModel],
        edge_settings: EdgeSettings,
        log_settings: LogSettings,
        replicas: Sequence[Any],
        max_requests: int,
        batch_settings: BatchSettings | None = None,
        batches: Any = None,
    ) -> None:
        """Ask `replicas`, for each model the handle of a deployment that takes at most `max_requests` requests at once.

        Only replicas with a model's fingerprint are asked. While an update has not brought one yet, this waits, so
        that Ray Serve leaves requests to the ingress before it. `batches` is the handle of the deployment that drives
        batches, where the Batch API is on.
        """
        keep_serve_on_loopback()
        set_up_logs(log_settings)
        self._replicas, self._names = replicas, [model.name for model in models]
        self._metrics = [ServingMetrics(name, to_ray=True) for name in self._names]
        backends = [
            Replicas(
                handle,
                is_repeatable=backend_of(model.settings).is_repeatable,
                fingerprint=model.fingerprint,
                max_requests=max_requests,
            )
            for model, handle in zip(models, replicas, strict=True)
        ]
        codecs = [load_codec(model.settings) for model in models]
        for codec in codecs:
            warn_of_late_text(codec)
        services = [
            Service(model.service, codec, backend, metrics)
            for model, codec, backend, metrics in zip(models, codecs, backends, self._metrics, strict=True)
        ]
        batch_service = None
        if batch_settings is not None:
            batch_service = BatchService(batch_settings, self._names, partial(wake, batches))
            edge_settings = replace(edge_settings, max_upload_bytes=batch_settings.max_file_bytes)
        await asyncio.gather(*(backend.wait_for_model() for backend in backends))
        self._app = create_app(Models(*services), batches=batch_service, has_docs=edge_settings.has_docs)
        install(self._app, edge_settings, self._metrics[0], max_requests * len(models), self._all_families)

    async def metric_families(self) -> list[Family]:
        """Return what this process has counted, with its name, for the page of any of them."""
        families = chain.from_iterable(metrics.families() for metrics in self._metrics)
        return of_process(families, serve.get_replica_context().replica_tag)

    async def _all_families(self) -> list[Family]:
        """Return what all ingresses have counted, and what the engines say now, without those that do not answer."""
        context = serve.get_replica_context()
        ingresses = serve.get_deployment_handle(context.deployment, context.app_name)
        counted, *stats = await asyncio.gather(
            _answers(ingresses.broadcast("metric_families")),
            *(_answers(handle.broadcast("stats")) for handle in self._replicas),
        )
        families = [family for each in counted for family in each] or await self.metric_families()
        return families + [
            family for name, of in zip(self._names, stats, strict=True) for family in of_engines(of, name)
        ]

    def reconfigure(self, config: dict[str, str]) -> None:
        """Ignore the configuration, which is only read by `endpoint.deployment.deployed_mark`."""

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application that Ray Serve runs."""
        return self._app


async def _answers(broadcast: Any) -> list[Any]:
    """Return what the processes of a deployment answered in time."""
    try:
        answers = await broadcast.results_async(timeout_s=_ANSWER_S, return_exceptions=True)
    except (TimeoutError, DeploymentUnavailableError):
        return []
    return [answer for answer in answers if not isinstance(answer, BaseException)]
