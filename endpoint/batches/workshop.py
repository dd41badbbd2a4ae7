"""Workshop: what the drivers of all batches share, and the way of their units to replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from actors.workers.batch_worker import UnitOrder
from endpoint.batches.input_check import InputRules
from endpoint.batches.run import BatchModel, Outcome
from endpoint.batches.store import BatchStore, FileStore
from pipeline.logs import Event
from pipeline.streaming.stream import UnitError

_AGAIN_S = 1.0
_log = logging.getLogger(__name__)


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
                return cast(Outcome, await response)
            except asyncio.CancelledError:
                response.cancel()
                raise
            except RayTaskError as error:  # not of a unit: those come as data
                return UnitError(f"a replica failed: {type(error.cause).__name__}")
            except (RayError, ReplicaUnavailableError, DeploymentUnavailableError, BackPressureError) as error:
                _log.warning(Event("replica lost", unit=order.unit.unit_id, error_type=type(error).__name__))
            await asyncio.sleep(_AGAIN_S)


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """What the drivers of all batches share."""

    files: FileStore
    batches: BatchStore
    models: Mapping[str | None, BatchModel]  # by the adapter's name; None is the endpoint's own model
    ledgers: Any  # the actor of their Ledgers
    max_units: int  # of one batch at once
    max_rows: int
    max_line_bytes: int
    keep_s: float
    clock: Callable[[], float]

    def rules(self, endpoint: str) -> InputRules:
        """Return what the input file of a batch of this endpoint must be."""
        served = [model.served for model in self.models.values()]
        names: dict[str | None, str] = {None: self.models[None].served.name}
        names |= {name: each.name for each in served for name in each.service.names}
        return InputRules(endpoint, names, self.max_rows, self.max_line_bytes)
