"""Ledger: the record of which process was given, has begun and has finished which unit of a run.

It finds the rows that kill their process, and idle processes for the units of slow ones. Ray repeats a call whose
process died, without end for a row that kills. So a worker asks the ledger, an actor beside the driver, before each
unit. After two deaths over a unit, the unit runs carefully: alone in its process, a few rows at a time, each group
announced here first. The group that was announced when a process died is suspect, and runs row by row. A row that ran
alone when two processes died is condemned: it becomes an error row, its neighbours do not.

The death of a process with its node, and a call that Ray repeats for another reason, count against no row.

When every unit has been handed out and a process has been idle for a moment, an unfinished unit is handed out again, to
that process: a backup (the backup tasks of MapReduce, Dean and Ghemawat 2004, section 3.6; docs/adr/0014). The first
commit wins. The first call stays responsible for the unit, so a backup is dropped, not repeated, once a process died
over the unit.

Of a finished unit one bit is kept: the ledger grows with the units under way and with the deaths.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from math import inf, isqrt
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.run_notes import RunNotes
from actors.units.processes import ProcessTable
from pipeline.id_set import IdSet
from pipeline.inputs.units import WorkUnit

_CAREFUL_AFTER = 2  # deaths over a unit
_CONDEMNED_AFTER = 2  # deaths over a row that ran alone
# Deaths over a unit after which the run fails: something else is wrong. A row that kills costs five (two among all
# rows, one in its group, two alone, of which the last condemns it), so this leaves room for several.
MAX_DEATHS = 24


class UnitAbandoned(RuntimeError):
    """More processes died over a unit than its rows can explain."""


class FeedSignal(Enum):
    """The ledger's answer to a feed that wants to hand out a unit."""

    GO = "hand it out"
    WAIT = "ask again in a moment"
    STOP = "hand out nothing more"


@dataclass(frozen=True)
class Attempt:
    """The permission to begin a unit, and how."""

    number: int  # from 0
    is_careful: bool
    follows_death: bool = field(default=False, compare=False)  # the process that had the unit before died over it
    num_deaths: int = field(default=0, compare=False)  # that came to light since the last attempt began


@dataclass(frozen=True)
class Group:
    """The rows of a careful unit to run now, without others. No rows: none is suspect any more."""

    rows: tuple[int, ...]
    condemned: tuple[int, ...]  # rows that must not run again


@dataclass(frozen=True)
class _Worker:
    """A process that works on a unit."""

    process: str
    node: str


@dataclass
class _Unit:
    unit: WorkUnit | None = None  # as it was handed out
    began: float = inf  # when, by the ledger's clock
    num_attempts: int = 0  # backups not among them
    num_backups: int = 0
    num_deaths: int = 0  # of processes over it; a process that dies over several units counts in each
    is_backed_up: bool = False  # handed out a second time
    is_declined: bool = False  # the process that got the backup was not allowed to begin it
    worker: _Worker | None = None
    backup_worker: _Worker | None = None
    untried: deque[tuple[int, ...]] | None = None  # groups of rows; None until the unit is careful
    in_flight: tuple[int, ...] = ()
    deaths_alone: Counter[int] = field(default_factory=Counter)

    @property
    def may_be_backed_up(self) -> bool:
        """Whether it was handed out once, and no process died over it."""
        return self.unit is not None and not self.is_backed_up and not self.num_deaths

    @property
    def is_on_its_way(self) -> bool:
        """Whether a backup was handed out and has not begun."""
        return self.is_backed_up and not self.is_declined and self.backup_worker is None

    @property
    def condemned(self) -> tuple[int, ...]:
        return tuple(row for row, deaths in self.deaths_alone.items() if deaths >= _CONDEMNED_AFTER)

    def counts(self) -> dict[str, int]:
        return {
            "num_repeated_units": max(0, self.num_attempts - 1),
            "num_condemned_rows": len(self.condemned),
            "num_backups": self.num_backups,
        }


class Ledger(RunNotes):
    """The record of one run's units, and its notes. Rows are numbered within their unit, from 0."""

    def __init__(
        self,
        is_node_alive: Callable[[str], bool] | None = None,
        *,
        units_in_flight: int = 1,
        max_waiting: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin an empty record. `is_node_alive` tells whether the node of an id is part of the cluster.

        A process works on `units_in_flight` units at once. At most `max_waiting` units are handed out and not begun.
        """
        super().__init__()
        self._is_node_alive = is_node_alive or _is_node_alive
        self._max_waiting, self._clock = max_waiting, clock
        self._processes = ProcessTable(units_in_flight, clock)
        self._units: dict[int, _Unit] = {}  # handed out or begun, not finished
        self._finished = IdSet()
        self._counts_of_finished = Counter(_Unit().counts())
        self._dead: set[str] = set()  # processes, each once, over however many units it died
        self._num_dead_reported = 0
        self._num_waiting = 0
        self._is_stopping = False
        self._dismissed: set[str] = set()  # processes that did not die over what they held

    def stop(self) -> None:
        """Stop the run: no unit begins any more."""
        self._is_stopping = True

    def join(self, process: str) -> None:
        """Add a process that is ready to work."""
        self._processes.join(process)

    def num_joined(self) -> int:
        """Return the number of processes that have joined, without those whose death was noticed."""
        return len(self._processes)

    def dismiss(self) -> None:
        """Remove all processes, which will be replaced: the units that they leave count against no row."""
        self._dismissed |= self._processes.dismiss()

    def hand_out(self, unit: WorkUnit) -> FeedSignal:
        """Return whether the unit may be handed out now. One that was handed out or is finished may be, again."""
        if self._is_stopping:
            return FeedSignal.STOP
        if unit.unit_id in self._finished or unit.unit_id in self._units:
            return FeedSignal.GO
        if self._num_waiting >= self._max_waiting:
            return FeedSignal.WAIT
        self._units[unit.unit_id] = _Unit(unit)
        self._num_waiting += 1
        return FeedSignal.GO

    def next_backup(self) -> WorkUnit | FeedSignal:
        """Return the unit to hand out a second time, after all were handed out once; or WAIT, or STOP.

        Units that have not begun come first (they wait behind a slow unit), then those that have run for longest.
        """
        candidates = [unit for unit in self._units.values() if unit.may_be_backed_up]
        if self._is_stopping or not candidates:
            return FeedSignal.STOP
        if self._processes.num_free_places() <= sum(unit.is_on_its_way for unit in self._units.values()):
            return FeedSignal.WAIT
        chosen = min(candidates, key=lambda unit: -inf if unit.began == inf else unit.began)
        assert chosen.unit is not None
        chosen.is_backed_up = True
        return chosen.unit

    def begin(self, unit_id: int, num_rows: int, process: str, node: str, is_backup: bool = False) -> Attempt | None:
        """Let a process of a node begin a unit. Return None if it may not.

        It may not if the run is stopping or the unit is finished. It may not begin a backup of its own unit, or of a
        unit that a process died over. Raises UnitAbandoned after too many deaths.
        """
        if self._is_stopping or unit_id in self._finished:
            return None
        unit = self._units.setdefault(unit_id, _Unit())
        before = unit.backup_worker if is_backup else unit.worker
        follows_death = before is not None and before.process != process and self._take_over(unit, before, is_backup)
        if is_backup and (unit.num_deaths or (unit.worker is not None and unit.worker.process == process)):
            unit.is_declined = True
            return None
        if unit.num_deaths >= MAX_DEATHS:
            raise UnitAbandoned(
                f"{unit.num_deaths} processes died over unit {unit_id}; no single row explains that: look at the "
                "memory of the nodes and at the workers' logs"
            )
        if unit.unit is not None and unit.began == inf:
            self._num_waiting -= 1
        unit.began = min(unit.began, self._clock())
        self._processes.take(process, unit_id, is_backup)
        if is_backup:
            unit.backup_worker = _Worker(process, node)
            unit.num_backups += 1
            return Attempt(unit.num_attempts, False, follows_death, self._new_deaths())
        is_careful = unit.num_deaths >= _CAREFUL_AFTER
        attempt = Attempt(unit.num_attempts, is_careful, follows_death, self._new_deaths())
        unit.num_attempts += 1
        unit.worker = _Worker(process, node)
        if attempt.is_careful and unit.untried is None:
            size = max(1, isqrt(num_rows))
            unit.untried = deque(tuple(range(first, min(first + size, num_rows))) for first in range(0, num_rows, size))
        return attempt

    def next_group(self, unit_id: int) -> Group | None:
        """Return the next rows of a careful unit, whose last ones have finished; None if the unit is committed."""
        if unit_id in self._finished:
            return None
        unit = self._units[unit_id]
        assert unit.untried is not None, "the unit is not careful"
        unit.in_flight = unit.untried.popleft() if unit.untried else ()
        return Group(unit.in_flight, unit.condemned)

    def finish(self, unit_id: int) -> None:
        """Record that the unit is committed."""
        self._finished.add(unit_id)
        unit = self._units.pop(unit_id, None)
        if unit is None:
            return  # a second backup ends, too
        if unit.unit is not None and unit.began == inf:
            self._num_waiting -= 1
        self._counts_of_finished.update(unit.counts())
        for worker in (unit.worker, unit.backup_worker):
            if worker is not None:
                self._processes.release(worker.process, unit_id)

    def is_finished(self, unit_id: int) -> bool:
        """Return whether the unit is committed."""
        return unit_id in self._finished

    def summary(self) -> dict[str, int]:
        """Return the run's counts: attempts beyond the first, rows condemned, backups begun, and dead processes."""
        summary = self._counts_of_finished.copy()
        for unit in self._units.values():
            summary.update(unit.counts())
        return {**summary, "num_deaths": len(self._dead)}

    def _new_deaths(self) -> int:
        """Return the number of known deaths that no attempt has reported yet."""
        num_new, self._num_dead_reported = len(self._dead) - self._num_dead_reported, len(self._dead)
        return num_new

    def _take_over(self, unit: _Unit, before: _Worker, is_backup: bool) -> bool:
        """Take the unit from a process that left it unfinished. Return whether it died over it, not with its node."""
        self._processes.leave(before.process)
        suspects: tuple[int, ...] = ()
        if is_backup:
            unit.backup_worker = None
        else:
            unit.worker, unit.in_flight, suspects = None, (), unit.in_flight
        if before.process in self._dismissed or not self._is_node_alive(before.node):
            if suspects and unit.untried is not None:
                unit.untried.appendleft(suspects)
            return False
        unit.num_deaths += 1
        self._dead.add(before.process)
        if unit.untried is None:
            return True
        if len(suspects) == 1:
            unit.deaths_alone.update(suspects)
        unit.untried.extendleft((row,) for row in reversed(suspects) if row not in unit.condemned)
        return True


def start_ledger(units_in_flight: int = 1, max_waiting: int = 64) -> Any:
    """Return a new ledger as an actor on the driver's node, where it lives as long as the driver."""
    return on_this_node(Ledger).remote(units_in_flight=units_in_flight, max_waiting=max_waiting)


def on_this_node(actor_class: type, **options: Any) -> Any:
    """Return a class of actors that take no CPU and live on this node."""
    # Not `soft`: an actor without CPUs would then be placed on any node, and die with it.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(actor_class).options(num_cpus=0, scheduling_strategy=here, **options)


def _is_node_alive(node: str) -> bool:
    return any(known["NodeID"] == node and known["Alive"] for known in ray.nodes())
