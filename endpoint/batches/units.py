"""Units of batches on their way to replicas: a unit whose replica dies is given to another one."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from actors.engine.requests import OtherModelError
from actors.workers.batch_worker import UnitOrder
from pipeline.logs import Event
from pipeline.run.commit import Receipt
from pipeline.streaming.stream import UnitError

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
