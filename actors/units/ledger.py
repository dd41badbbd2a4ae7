"""Ledger: which units were handed out, begun and finished by which process, so that nobody waits for a process that
died or dawdles, and its rows are not feared for ever.

Ray repeats a call whose process died, and would do so without end for a row that kills. The ledger lives beside the
driver and is asked before each unit. A unit that two processes died over is run carefully: alone in its process, a few
rows at a time, each group announced here first. What was announced when a process died is suspect and runs row by row;
a row that two processes died over while it ran alone is condemned: it becomes an error row, its neighbours do not.

A process that went down with its node, or a call that Ray repeats for another reason, is held against nobody.

When every unit has been handed out and a process has had nothing to do for a moment, one of the units that are not
finished is handed out again, to that process: a backup (the backup tasks of MapReduce, Dean and Ghemawat 2004, section
3.6; docs/adr/0014). Who commits first wins. The backup is a guest: the first call stays answerable for the unit, so a
backup is dropped, not repeated, once a process died over the unit.

What is finished is forgotten, but for one bit: the ledger's size is that of the units under way, and of the dead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from math import inf, isqrt
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.units.workforce import Workforce
from pipeline.id_set import IdSet
from pipeline.inputs.units import WorkUnit

_CAREFUL_AFTER = 2  # deaths over a unit
_CONDEMNED_AFTER = 2  # deaths over a row that ran alone
# Deaths over a unit after which the run fails: something else is wrong. A row that kills costs four (twice among all,
# once in a group, twice alone, of which the last condemns it), so this leaves room for several.
MOST_DEATHS = 24


class UnitAbandoned(RuntimeError):
    """So many processes died over a unit that its rows cannot be the cause."""


class Pace(Enum):
    """What whoever hands out units is told."""

    GO = "hand it out"
    WAIT = "ask again in a moment"
    STOP = "hand out nothing more"


@dataclass(frozen=True)
class Attempt:
    """What a process may do with a unit."""

    number: int  # from 0
    is_careful: bool
    follows_death: bool = field(default=False, compare=False)  # whoever held the unit before died over it
    num_deaths: int = field(default=0, compare=False)  # processes whose death came to light since the last attempt


@dataclass(frozen=True)
class Group:
    """What to do next in a careful unit: run these rows now, alone. No rows: nothing is suspect any more."""

    rows: tuple[int, ...]
    condemned: tuple[int, ...]  # rows never to run again


@dataclass(frozen=True)
class _Holder:
    """Who works on a unit."""

    process: str
    node: str


@dataclass
class _Unit:
    unit: WorkUnit | None = None  # as it was handed out
    began: float = inf  # when, by the ledger's clock
    num_attempts: int = 0  # backups not among them
    num_backups: int = 0
    num_deaths: int = 0  # over it: a process that dies over several units is one in each
    is_backed_up: bool = False  # handed out a second time
    is_declined: bool = False  # whoever got the backup must not begin it
    holder: _Holder | None = None
    backup_holder: _Holder | None = None
    untried: deque[tuple[int, ...]] | None = None  # groups of rows; None until the unit is careful
    in_flight: tuple[int, ...] = ()
    deaths_alone: dict[int, int] = field(default_factory=dict)

    @property
    def may_be_backed_up(self) -> bool:
        """Whether it was handed out once, and nobody died over it."""
        return self.unit is not None and not self.is_backed_up and not self.num_deaths

    @property
    def is_on_its_way(self) -> bool:
        """Whether a backup was handed out that nobody has begun."""
        return self.is_backed_up and not self.is_declined and self.backup_holder is None

    @property
    def num_condemned(self) -> int:
        return sum(deaths >= _CONDEMNED_AFTER for deaths in self.deaths_alone.values())

    def counts(self) -> dict[str, int]:
        return {
            "num_repeated_units": max(0, self.num_attempts - 1),
            "num_condemned_rows": self.num_condemned,
            "num_backups": self.num_backups,
        }


class Ledger:
    """The record of one run's units. Rows are numbered within their unit, from 0."""

    def __init__(
        self,
        is_node_alive: Callable[[str], bool] | None = None,
        *,
        units_in_flight: int = 1,
        most_waiting: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Empty. `is_node_alive` tells whether the node of this id is part of the cluster.

        A process works on `units_in_flight` units at once; no more than `most_waiting` are handed out and not begun.
        """
        self._is_node_alive = is_node_alive or _is_node_alive
        self._most_waiting, self._clock = most_waiting, clock
        self._workforce = Workforce(units_in_flight, clock)
        self._units: dict[int, _Unit] = {}  # handed out or begun, not finished
        self._finished = IdSet()
        self._counts_of_finished = _Unit().counts()
        self._dead: set[str] = set()  # processes, each once, over however many units it died
        self._num_dead_told = 0
        self._num_waiting = 0
        self._is_stopping = False
        self._dismissed: set[str] = set()  # processes that did not die over what they held

    def stop(self) -> None:
        """Let nobody begin a unit any more."""
        self._is_stopping = True

    def join(self, process: str) -> None:
        """This process is ready to work."""
        self._workforce.join(process)

    def num_joined(self) -> int:
        """Processes that have been ready, less those whose death was noticed."""
        return len(self._workforce)

    def dismiss(self) -> None:
        """Every process is let go, and others will come: what these leave unfinished is held against no row."""
        self._dismissed |= self._workforce.dismiss()

    def hand_out(self, unit: WorkUnit) -> Pace:
        """Whether the unit may be handed out now. Once it was, or is finished, it may again."""
        if self._is_stopping:
            return Pace.STOP
        if unit.unit_id in self._finished or unit.unit_id in self._units:
            return Pace.GO
        if self._num_waiting >= self._most_waiting:
            return Pace.WAIT
        self._units[unit.unit_id] = _Unit(unit)
        self._num_waiting += 1
        return Pace.GO

    def next_backup(self) -> WorkUnit | Pace:
        """The unit to hand out a second time, when all have been handed out once; or WAIT, or STOP.

        Those that nobody has begun come first (they wait behind a slow unit), then those that have run for longest.
        """
        candidates = [unit for unit in self._units.values() if unit.may_be_backed_up]
        if self._is_stopping or not candidates:
            return Pace.STOP
        if self._workforce.num_free_places() <= sum(unit.is_on_its_way for unit in self._units.values()):
            return Pace.WAIT
        chosen = min(candidates, key=lambda unit: -inf if unit.began == inf else unit.began)
        assert chosen.unit is not None
        chosen.is_backed_up = True
        return chosen.unit

    def begin(self, unit_id: int, num_rows: int, process: str, node: str, is_backup: bool = False) -> Attempt | None:
        """This process of that node starts on a unit; None if it must not.

        It must not where the run is stopping or the unit is finished; nor start a backup of a unit of its own, or of
        one that somebody died over. Raises UnitAbandoned after too many deaths.
        """
        if self._is_stopping or unit_id in self._finished:
            return None
        unit = self._units.setdefault(unit_id, _Unit())
        before = unit.backup_holder if is_backup else unit.holder
        follows_death = before is not None and before.process != process and self._take_over(unit, before, is_backup)
        if is_backup and (unit.num_deaths or (unit.holder is not None and unit.holder.process == process)):
            unit.is_declined = True
            return None
        if unit.num_deaths >= MOST_DEATHS:
            raise UnitAbandoned(
                f"{unit.num_deaths} processes died over unit {unit_id}; no single row explains that: look at the "
                "memory of the nodes and at the workers' logs"
            )
        if unit.unit is not None and unit.began == inf:
            self._num_waiting -= 1
        unit.began = min(unit.began, self._clock())
        self._workforce.take(process, unit_id, is_backup)
        if is_backup:
            unit.backup_holder = _Holder(process, node)
            unit.num_backups += 1
            return Attempt(unit.num_attempts, False, follows_death, self._deaths_to_tell())
        is_careful = unit.num_deaths >= _CAREFUL_AFTER
        attempt = Attempt(unit.num_attempts, is_careful, follows_death, self._deaths_to_tell())
        unit.num_attempts += 1
        unit.holder = _Holder(process, node)
        if attempt.is_careful and unit.untried is None:
            size = max(1, isqrt(num_rows))
            unit.untried = deque(tuple(range(first, min(first + size, num_rows))) for first in range(0, num_rows, size))
        return attempt

    def next_group(self, unit_id: int) -> Group | None:
        """The rows that a careful unit runs next; those it was given before have come through. None: it is finished."""
        if unit_id in self._finished:
            return None
        unit = self._units[unit_id]
        assert unit.untried is not None, "the unit is not careful"
        unit.in_flight = unit.untried.popleft() if unit.untried else ()
        condemned = tuple(row for row, deaths in unit.deaths_alone.items() if deaths >= _CONDEMNED_AFTER)
        return Group(unit.in_flight, condemned)

    def finish(self, unit_id: int) -> None:
        """The unit is committed."""
        self._finished.add(unit_id)
        unit = self._units.pop(unit_id, None)
        if unit is None:
            return  # a second backup ends, too
        if unit.unit is not None and unit.began == inf:
            self._num_waiting -= 1
        for name, count in unit.counts().items():
            self._counts_of_finished[name] += count
        for holder in (unit.holder, unit.backup_holder):
            if holder is not None:
                self._workforce.let_go(holder.process, unit_id)

    def is_finished(self, unit_id: int) -> bool:
        """Whether somebody has committed the unit."""
        return unit_id in self._finished

    def summary(self) -> dict[str, int]:
        """Counts of the run: attempts beyond the first, rows condemned, backups that were begun, and dead processes."""
        summary = {**self._counts_of_finished, "num_deaths": len(self._dead)}
        for unit in self._units.values():
            for name, count in unit.counts().items():
                summary[name] += count
        return summary

    def _deaths_to_tell(self) -> int:
        """How many processes are known to have died, of which no attempt was told yet."""
        num_new, self._num_dead_told = len(self._dead) - self._num_dead_told, len(self._dead)
        return num_new

    def _take_over(self, unit: _Unit, before: _Holder, is_backup: bool) -> bool:
        """The process that held the unit has left it unfinished. Whether it died over it: not with its node."""
        self._workforce.leave(before.process)
        suspects: tuple[int, ...] = ()
        if is_backup:
            unit.backup_holder = None
        else:
            unit.holder = None
            suspects, unit.in_flight = unit.in_flight, ()
        if before.process in self._dismissed or not self._is_node_alive(before.node):
            if suspects and unit.untried is not None:
                unit.untried.appendleft(suspects)
            return False
        unit.num_deaths += 1
        self._dead.add(before.process)
        if unit.untried is None:
            return True
        if len(suspects) == 1:
            (row,) = suspects
            unit.deaths_alone[row] = unit.deaths_alone.get(row, 0) + 1
            if unit.deaths_alone[row] >= _CONDEMNED_AFTER:
                return True
        unit.untried.extendleft((row,) for row in reversed(suspects))
        return True


def start_ledger(units_in_flight: int = 1, most_waiting: int = 64) -> Any:
    """A new ledger as an actor on the driver's node, where it lives as long as the driver."""
    # Not softly: an actor without CPUs is then placed anywhere, and the ledger would die with a node of others.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"units_in_flight": units_in_flight, "most_waiting": most_waiting}
    return ray.remote(Ledger).options(num_cpus=0, scheduling_strategy=here).remote(**options)


def _is_node_alive(node: str) -> bool:
    return any(known["NodeID"] == node and known["Alive"] for known in ray.nodes())
