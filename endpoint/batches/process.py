"""The drivers of all batches that have not ended, in one process: a Ray Serve deployment that needs no GPU."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from actors.engines.loading import load_codec
from actors.units.ledgers import start_ledgers
from endpoint.batches.batch import BatchSettings
from endpoint.batches.driver import BatchDriver
from endpoint.batches.run import BatchModel, ReplicaUnits, Workshop
from endpoint.batches.store import BatchStore, FileStore
from endpoint.service.served_model import ServedModel
from pipeline.logs import Event, LogSettings, failure_event, set_up_logs
from pipeline.ray_internals import keep_serve_on_loopback
from pipeline.run.progress.lease import LeaseHeld, LeaseLost

_LOOK_EVERY_S = 10.0  # for batches that this process was not told of
_SWEEP_EVERY_S = 3600.0  # for what has expired
_UNFINISHED_S = 86_400.0  # after which the rest of an upload that died is deleted
_log = logging.getLogger(__name__)
_TELL_S = 5.0  # to tell the deployment of a new batch; it looks by itself, too


class Batches:
    """The drivers of one process. Belongs to the event loop in which `run` is awaited."""

    def __init__(
        self,
        models: Sequence[BatchModel],
        batch_settings: BatchSettings,
        ledgers: Any,
        *,
        max_units: int,
        max_line_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take over the batches under `batch_settings.path`, for engines of these models; the first is their own.

        At most `max_units` units of a batch are under way at once; `ledgers` is the actor of their Ledgers. A request
        may have `max_line_bytes`. Raises ValueError or OSError if the folder cannot be used.
        """
        assert batch_settings.path is not None
        files = FileStore(batch_settings.path, clock)
        self._shop = Workshop(
            files=files,
            batches=BatchStore(files.root, files.temporary),
            models={model.served.adapter: model for model in models},
            ledgers=ledgers,
            max_units=max_units,
            max_rows=batch_settings.max_rows,
            max_line_bytes=max_line_bytes,
            keep_s=batch_settings.keep_s,
            clock=clock,
        )
        self._drivers: dict[str, tuple[BatchDriver, asyncio.Task[None]]] = {}
        self._awake = asyncio.Event()
        self._swept_at = float("-inf")

    def wake(self) -> None:
        """Look for new batches, and for those that are to be cancelled, at once."""
        self._awake.set()

    async def run(self) -> None:
        """Bring batches to their ends until this is cancelled."""
        try:
            while True:
                self._awake.clear()
                try:
                    await self._look()
                except OSError as error:
                    _log.error(failure_event("batches not read", error))
                try:
                    async with asyncio.timeout(_LOOK_EVERY_S):
                        await self._awake.wait()
                except TimeoutError:
                    continue
        finally:
            tasks = [task for _, task in self._drivers.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        owners = await asyncio.to_thread(self._shop.files.owners)
        in_use = set[str]()
        for owner in owners:
            for batch in await asyncio.to_thread(self._shop.batches.unfinished, owner):
                in_use.add(batch.input_file_id)
                if batch.id not in self._drivers:
                    driver = BatchDriver(batch, self._shop)
                    task = asyncio.create_task(self._drive(batch.id, driver))
                    self._drivers[batch.id] = driver, task
                is_cancelled = await asyncio.to_thread(self._shop.batches.cancelled_at, batch) is not None
                if is_cancelled and (driven := self._drivers.get(batch.id)) is not None:
                    driven[0].cancel()
        if time.monotonic() - self._swept_at >= _SWEEP_EVERY_S:
            self._swept_at = time.monotonic()
            await asyncio.to_thread(self._sweep, owners, in_use)

    async def _drive(self, batch_id: str, driver: BatchDriver) -> None:
        try:
            await driver.drive()
        except (LeaseHeld, LeaseLost) as error:
            _log.info(Event("batch left to another process", batch=batch_id, reason=str(error)))
        except Exception as error:  # noqa: BLE001 - tried again at the next look
            _log.error(failure_event("batch not driven", error, batch=batch_id))
        finally:
            del self._drivers[batch_id]

    def _sweep(self, owners: list[str], in_use: set[str]) -> None:
        for owner in owners:
            self._shop.files.delete_expired(owner, _UNFINISHED_S, in_use)
            self._shop.batches.delete_old(owner, self._shop.clock() - self._shop.keep_s)


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
            BatchModel(model, codec, ReplicaUnits(handle), batch_settings.rows_per_unit, max_units)
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
