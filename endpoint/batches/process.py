"""BatchesProcess: the drivers of all batches as a Ray Serve deployment of one replica, which needs no GPU."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from actors.engines.loading import load_codec
from actors.units.ledgers import start_ledgers
from endpoint.batches.batches import Batches
from endpoint.batches.settings import BatchSettings
from endpoint.batches.units import ReplicaUnits
from endpoint.batches.workshop import BatchModel
from endpoint.service.served_model import ServedModel
from pipeline.logs import Event, LogSettings, set_up_logs
from pipeline.ray_internals import keep_serve_on_loopback

_TELL_S = 5.0  # to tell the deployment of a new batch; it looks by itself, too
_log = logging.getLogger(__name__)


class BatchesProcess:
    """A process that goes on with all batches that have not ended, and takes new ones."""

    async def __init__(  # type: ignore[misc]
        self,
        models: Sequence[ServedModel],
        batch_settings: BatchSettings,
        log_settings: LogSettings,
        replicas: Sequence[Any],
        max_units: int,
        max_line_bytes: int,
    ) -> None:
        """Give `replicas`, for each model the handle of a deployment, at most `max_units` units at once."""
        keep_serve_on_loopback()
        set_up_logs(log_settings)
        codecs = [await asyncio.to_thread(load_codec, model.settings) for model in models]
        own = [
            BatchModel.of(model, codec, ReplicaUnits(handle), batch_settings.rows_per_unit, max_units)
            for model, codec, handle in zip(models, codecs, replicas, strict=True)
        ]
        self._batches = Batches(
            own, batch_settings, start_ledgers(), max_units=max_units, max_line_bytes=max_line_bytes
        )
        self._running = asyncio.create_task(self._batches.run())

    async def wake(self) -> None:
        """Look for new batches, and for those that are to be cancelled."""
        self._batches.wake()

    async def check_health(self) -> None:
        """Raise if batches are not driven any more; Ray Serve then replaces this process."""
        if self._running.done():
            raise RuntimeError("batches are not driven any more")


async def wake(batches: Any) -> None:
    """Tell the process behind a deployment's handle to look; it may be away, and looks when it comes back."""
    try:
        async with asyncio.timeout(_TELL_S):
            await batches.wake.remote()
    except (RayError, ReplicaUnavailableError, DeploymentUnavailableError, BackPressureError, TimeoutError) as error:
        _log.warning(Event("batches not told", error_type=type(error).__name__))
