"""Feed: the units of a run on their way to the actors, at the pace that the ledger sets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ray

from actors.units.ledger import Pace
from pipeline.id_set import IdSet
from pipeline.inputs.units import WorkUnit
from pipeline.streaming.stream import Ticket

_MOMENT_S = 0.1


@dataclass(frozen=True)
class Feed:
    """Called in a process beside the driver: every unit once, never far ahead of the actors, then backups of the last.

    `units` yields the same units in the same order each time. `ledger` is the run's Ledger, an actor. With `backups`,
    it goes on until every unit is finished or has a backup; what remains then needs nobody who is idle, and Ray Data
    lets idle actors go.
    """

    units: Iterable[WorkUnit]
    ledger: Any
    backups: bool
    done: IdSet = field(default_factory=IdSet)  # units that nobody is to be handed any more

    def __call__(self) -> Iterator[Ticket]:
        """The tickets, waiting between them."""
        for unit in self.units:
            if unit.unit_id in self.done:
                continue
            while (pace := ray.get(self.ledger.hand_out.remote(unit))) is Pace.WAIT:
                time.sleep(_MOMENT_S)
            if pace is Pace.STOP:
                return
            yield Ticket(unit)
        while self.backups:
            backup: WorkUnit | Pace = ray.get(self.ledger.next_backup.remote())
            if isinstance(backup, WorkUnit):
                yield Ticket(backup, is_backup=True)
            elif backup is Pace.STOP:
                return
            else:
                time.sleep(_MOMENT_S)
