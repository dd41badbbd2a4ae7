"""UnitCall and UnitError: what travels to the actors and back. A table has a row for each, pickled."""

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.inputs.units import WorkUnit


@dataclass(frozen=True)
class UnitCall:
    """A unit on its way to an actor: for the first time, again after a place gave it back, or as a backup."""

    unit: WorkUnit
    is_backup: bool = False


class UnitError(RuntimeError):
    """A worker could not do its unit. The message is the worker's own; nothing of the unit is committed."""


class PlaceFailedError(UnitError):
    """The process or its node failed, and not the unit: it can be done elsewhere, or later."""


class UnitsLeft(UnitError):
    """Actors have ended without these units, which their places gave back. Others may do them."""


class NoProgressError(RuntimeError):
    """No unit was committed for as long as a run waits for one."""


def packed(objects: Iterable[Any]) -> pa.Table:
    """Return a table with a row for each object, pickled as Ray does with what it hands to actors."""
    return pa.table({"pickled": pa.array(map(pickle.dumps, objects), pa.binary())})


def unpacked(table: pa.Table) -> list[Any]:
    """Return the objects in a table."""
    pickled: list[Any] = table["pickled"].to_pylist()
    return list(map(pickle.loads, pickled))
