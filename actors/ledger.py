"""Ledger: which units were begun by which process, so that a process that died is noticed and its rows are not feared
for ever.

Ray repeats a call whose process died, and would do so without end for a row that kills. The ledger lives beside the
driver and is asked before each unit. A unit that two processes died over is run carefully: alone in its process, a few
rows at a time, each group announced here first. What was announced when a process died is suspect and runs row by row;
a row that two processes died over while it ran alone is condemned: it becomes an error row, its neighbours do not.

A process that went down with its node, or a call that Ray repeats for another reason, is held against nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isqrt
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_CAREFUL_AFTER = 2  # deaths over a unit
_CONDEMNED_AFTER = 2  # deaths over a row that ran alone
# Deaths over a unit after which the run fails: something else is wrong. A row that kills costs four (twice among all,
# once in a group, twice alone, of which the last condemns it), so this leaves room for several.
MOST_DEATHS = 24


class UnitAbandoned(RuntimeError):
    """So many processes died over a unit that its rows cannot be the cause."""


@dataclass(frozen=True)
class Attempt:
    """What a process may do with a unit."""

    number: int  # from 0
    is_careful: bool
    num_deaths: int = field(default=0, compare=False)  # over the unit, that came to light by this beginning (0 or 1)


@dataclass(frozen=True)
class Group:
    """What to do next in a careful unit: run these rows now, alone. No rows: nothing is suspect any more."""

    rows: tuple[int, ...]
    condemned: tuple[int, ...]  # rows never to run again


@dataclass
class _Unit:
    num_attempts: int = 0
    num_deaths: int = 0
    holder: tuple[str, str] | None = None  # process and node that work on it
    untried: deque[tuple[int, ...]] | None = None  # groups of rows; None until the unit is careful
    in_flight: tuple[int, ...] = ()
    deaths_alone: dict[int, int] = field(default_factory=dict)


class Ledger:
    """The record of one run's units. Rows are numbered within their unit, from 0."""

    def __init__(self, is_node_alive: Callable[[str], bool] | None = None) -> None:
        """Empty; `is_node_alive` tells whether the node of this id is part of the cluster."""
        self._is_node_alive = is_node_alive or _is_node_alive
        self._units: dict[int, _Unit] = {}
        self._is_stopping = False

    def stop(self) -> None:
        """Let nobody begin a unit any more."""
        self._is_stopping = True

    def begin(self, unit_id: int, num_rows: int, process: str, node: str) -> Attempt | None:
        """This process of that node starts on a unit; None if the run is stopping.

        Raises UnitAbandoned after too many deaths.
        """
        if self._is_stopping:
            return None
        unit = self._units.setdefault(unit_id, _Unit())
        known_deaths = unit.num_deaths
        if unit.holder is not None and unit.holder[0] != process:
            self._take_over(unit)
        if unit.num_deaths >= MOST_DEATHS:
            raise UnitAbandoned(
                f"{unit.num_deaths} processes died over unit {unit_id}; no single row explains that: look at the "
                "memory of the nodes and at the workers' logs"
            )
        attempt = Attempt(unit.num_attempts, unit.num_deaths >= _CAREFUL_AFTER, unit.num_deaths - known_deaths)
        unit.num_attempts += 1
        unit.holder = (process, node)
        if attempt.is_careful and unit.untried is None:
            size = max(1, isqrt(num_rows))
            unit.untried = deque(tuple(range(first, min(first + size, num_rows))) for first in range(0, num_rows, size))
        return attempt

    def next_group(self, unit_id: int) -> Group:
        """The rows that a careful unit runs next; those it was given before have come through."""
        unit = self._units[unit_id]
        assert unit.untried is not None, "the unit is not careful"
        unit.in_flight = unit.untried.popleft() if unit.untried else ()
        condemned = tuple(row for row, deaths in unit.deaths_alone.items() if deaths >= _CONDEMNED_AFTER)
        return Group(unit.in_flight, condemned)

    def finish(self, unit_id: int) -> None:
        """The unit is committed."""
        unit = self._units[unit_id]
        unit.holder, unit.untried, unit.in_flight = None, None, ()

    def summary(self) -> dict[str, int]:
        """Counts of the run: attempts beyond the first, deaths, and rows condemned."""
        units = self._units.values()
        return {
            "num_repeated_units": sum(max(0, unit.num_attempts - 1) for unit in units),
            "num_deaths": sum(unit.num_deaths for unit in units),
            "num_condemned_rows": sum(
                deaths >= _CONDEMNED_AFTER for unit in units for deaths in unit.deaths_alone.values()
            ),
        }

    def _take_over(self, unit: _Unit) -> None:
        """The process that held the unit has left it unfinished."""
        assert unit.holder is not None
        suspects, unit.in_flight = unit.in_flight, ()
        if not self._is_node_alive(unit.holder[1]):
            if suspects and unit.untried is not None:
                unit.untried.appendleft(suspects)
            return
        unit.num_deaths += 1
        if unit.untried is None:
            return
        if len(suspects) == 1:
            (row,) = suspects
            unit.deaths_alone[row] = unit.deaths_alone.get(row, 0) + 1
            if unit.deaths_alone[row] >= _CONDEMNED_AFTER:
                return
        unit.untried.extendleft((row,) for row in reversed(suspects))


def start_ledger() -> Any:
    """A new ledger as an actor on the driver's node, where it lives as long as the driver."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(Ledger).options(num_cpus=0, scheduling_strategy=here).remote()


def _is_node_alive(node: str) -> bool:
    return any(known["NodeID"] == node and known["Alive"] for known in ray.nodes())
