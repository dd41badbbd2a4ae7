"""UnitFeed: the units of a run on their way to the actors, at the pace that the ledger sets."""

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import ray

from actors.units.unit_record import Signal
from pipeline.id_set import IdSet
from pipeline.inputs.units import WorkUnit
from pipeline.streaming.calls import UnitCall

_MOMENT_S = 0.1


@dataclass(frozen=True)
class UnitFeed:
    """A source of every unit once, never far ahead of the actors, then of backups. Runs in a process beside the driver.

    `units` yields the same units in the same order each time. `ledger` is the actor of the run's Ledger. A unit that a
    place gave back comes again, between the others. With `backups`, the feed goes on until every unit is finished or
    has a backup. Then idle actors have nothing left to do, and Ray Data ends them.
    """

    units: Iterable[WorkUnit]
    ledger: Any
    backups: bool
    done: IdSet = field(default_factory=IdSet)  # units that are not handed out again

    def __call__(self) -> Iterator[UnitCall]:
        """Yield the calls, and wait between them."""
        name, numbers = uuid.uuid4().hex, count()

        def answer(method: Any, *arguments: Any) -> UnitCall | Signal:
            while True:
                found: UnitCall | Signal = ray.get(method.remote(*arguments, (name, next(numbers))))
                if found is not Signal.WAIT:
                    return found
                time.sleep(_MOMENT_S)

        for unit in self.units:
            if unit.unit_id in self.done:
                continue
            while isinstance(found := answer(self.ledger.hand_out, unit), UnitCall):
                yield found
            if found is Signal.STOP:
                return
            yield UnitCall(unit)
        while isinstance(found := answer(self.ledger.hand_out_again, self.backups), UnitCall):
            yield found
