"""Workshop: what the drivers of all batches share, and the way of their units to replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from actors.engine.requests import OtherModelError
from actors.workers.batch_worker import UnitOrder
from endpoint.batches.input_check import InputRules
from endpoint.batches.run import RunMaker
from endpoint.batches.store import BatchStore, FileStore
from endpoint.service.served_model import ServedModel
from pipeline.logs import Event
from pipeline.run.commit import Receipt
from pipeline.streaming.stream import UnitError
from pipeline.text.codec import TextCodec

_AGAIN_S = 1.0
_log = logging.getLogger(__name__)

Outcome = Receipt | UnitError | OtherModelError | None


class UnitWriter(Protocol):
    """A doer of units. `actors.workers.replica.Replica` does them in its own process."""

    async def write_unit(self, order: UnitOrder) -> Outcome:
        """Do a unit; return its receipt, why it could not be done, or None if it may not begin."""


class ReplicaUnits:
    """Replicas behind a Ray Serve deployment, which does a unit where it has least to do."""

    def __init__(self, handle: Any) -> None:
        """Give units to the replicas behind `handle`."""
        self._handle = handle

    async def write_unit(self, order: UnitOrder) -> Outcome:
        """Return what a replica returns. The ledger counts those that die over the unit, and bounds them."""
        while True:
            response = self._handle.write_unit.remote(order)
            try:
                outcome: Outcome = await response
                return outcome
            except asyncio.CancelledError:
                response.cancel()
                raise
            except RayTaskError as error:  # not of a unit: those come as data
                return UnitError(f"a replica failed: {type(error.cause).__name__}")
            except (RayError, ReplicaUnavailableError, DeploymentUnavailableError, BackPressureError) as error:
                _log.warning(Event("replica lost", unit=order.unit.unit_id, error_type=type(error).__name__))
            await asyncio.sleep(_AGAIN_S)


@dataclass(frozen=True, kw_only=True)
class BatchModel:
    """A model that batches may ask for. At most as many of its units are under way as `places` has."""

    served: ServedModel
    runs: RunMaker
    codec: TextCodec
    units: UnitWriter
    places: asyncio.Semaphore

    @classmethod
    def of(
        cls, served: ServedModel, codec: TextCodec, units: UnitWriter, rows_per_unit: int, max_units: int
    ) -> BatchModel:
        """Return a served model whose engines do at most `max_units` units of `rows_per_unit` rows at once."""
        return cls(
            served=served,
            runs=RunMaker(served, codec, rows_per_unit),
            codec=codec,
            units=units,
            places=asyncio.Semaphore(max_units),
        )


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """What the drivers of all batches share."""

    files: FileStore
    batches: BatchStore
    models: Mapping[str | None, BatchModel]  # by the adapter's name; None is the endpoint's own model
    ledgers: Any  # the actor of their Ledgers
    max_units: int  # of one batch at once
    rules: Callable[[str], InputRules]  # by endpoint
    keep_s: float
    clock: Callable[[], float]
