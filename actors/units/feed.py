"""UnitFeed: the units of a run on their way to the actors, at the pace that the ledger sets."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ray

from actors.units.ledger import FeedSignal
from pipeline.id_set import IdSet
from pipeline.inputs.units import WorkUnit
from pipeline.streaming.stream import UnitCall

_MOMENT_S = 0.1


@dataclass(frozen=True)
class UnitFeed:
    """A source of every unit once, never far ahead of the actors, then of backups. Runs in a process beside the driver.

    `units` yields the same units in the same order each time. `ledger` is the actor of the run's Ledger. With
    `backups`, it goes on until every unit is finished or has a backup. Then idle actors have nothing left to do, and
    Ray Data ends them.
    """

    units: Iterable[WorkUnit]
    ledger: Any
    backups: bool
    done: IdSet = field(default_factory=IdSet)  # units that are not handed out again

    def __call__(self) -> Iterator[UnitCall]:
        """Yield the calls, and wait between them."""
        for unit in self.units:
            if unit.unit_id in self.done:
                continue
            while (signal := ray.get(self.ledger.hand_out.remote(unit))) is FeedSignal.WAIT:
                time.sleep(_MOMENT_S)
            if signal is FeedSignal.STOP:
                return
            yield UnitCall(unit)
        while self.backups:
            backup: WorkUnit | FeedSignal = ray.get(self.ledger.next_backup.remote())
            if isinstance(backup, WorkUnit):
                yield UnitCall(backup, is_backup=True)
            elif backup is FeedSignal.STOP:
                return
            else:
                time.sleep(_MOMENT_S)
