"""Batches in this process, without Ray: the ledgers are objects, and the driver runs in the application's loop."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from actors.settings import GeneratorSettings
from actors.units.ledger import Ledger
from actors.units.ledgers import Ledgers
from endpoint.batches.batch import BatchSettings
from endpoint.batches.process import Batches
from endpoint.batches.run import BatchModel, UnitWriter
from endpoint.service.served_model import ServedModel
from endpoint.service.service import ServiceSettings
from pipeline.text.codec import TextCodec

MAX_LINE_BYTES = 20_000


class LedgersHere:
    """Ledgers with the methods of an actor's handle."""

    def __init__(self) -> None:
        """Begin without runs; no node dies."""
        self.ledgers = Ledgers(lambda: Ledger(lambda node: True))

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> asyncio.Future[Any]:
            future = asyncio.get_running_loop().create_future()
            future.set_result(getattr(self.ledgers, name)(*arguments))
            return future

        return SimpleNamespace(remote=remote)


def batch_model(
    settings: GeneratorSettings,
    codec: TextCodec,
    service_settings: ServiceSettings,
    units: UnitWriter,
    *,
    rows_per_unit: int = BatchSettings.rows_per_unit,
    max_units: int = 2,
    fingerprint: str = "",
) -> BatchModel:
    """Return a model that batches may ask for, whose units these writers do."""
    served = ServedModel(settings=settings, service=service_settings, fingerprint=fingerprint, target="/as/configured")
    return BatchModel(served, codec, units, rows_per_unit, max_units)


def make_batches(models: Sequence[BatchModel], batch_settings: BatchSettings, **options: Any) -> Batches:
    """Return the drivers of this process."""
    values = {"max_units": 2, "max_line_bytes": MAX_LINE_BYTES, **options}
    return Batches(models, batch_settings, LedgersHere(), **values)


class Driving:
    """Drivers that begin when they are first woken, in the loop in which that happens."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Keep what `make_batches` takes."""
        self._arguments, self._options = arguments, options
        self._batches: Batches | None = None
        self._task: asyncio.Task[None] | None = None

    async def wake(self) -> None:
        """Let the drivers look for work."""
        if self._batches is None:
            self._batches = make_batches(*self._arguments, **self._options)
            self._task = asyncio.create_task(self._batches.run())
        self._batches.wake()
