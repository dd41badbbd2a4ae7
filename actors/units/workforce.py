"""Workforce: which processes there are and what they work on, so that it is known who has nothing to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# Idle for so many seconds, a process gets a backup: a unit that was just handed out takes some time to reach it.
_IDLE_AFTER_S = 1.0


@dataclass
class _Process:
    idle_since: float
    units: set[int] = field(default_factory=set)
    backups: set[int] = field(default_factory=set)


class Workforce:
    """Processes by name; each works on `units_in_flight` units at once, of its own or backups of others' units."""

    def __init__(self, units_in_flight: int, clock: Callable[[], float]) -> None:
        """Nobody yet. `clock` gives seconds."""
        self._units_in_flight, self._clock = units_in_flight, clock
        self._processes: dict[str, _Process] = {}

    def __len__(self) -> int:
        return len(self._processes)

    def join(self, process: str) -> None:
        """It is there, if it was not before."""
        self._processes.setdefault(process, _Process(self._clock()))

    def leave(self, process: str) -> None:
        """It has died."""
        self._processes.pop(process, None)

    def dismiss(self) -> set[str]:
        """All are let go; who they were."""
        names = set(self._processes)
        self._processes.clear()
        return names

    def take(self, process: str, unit_id: int, is_backup: bool) -> None:
        """It begins to work on the unit."""
        self.join(process)
        known = self._processes[process]
        (known.backups if is_backup else known.units).add(unit_id)

    def let_go(self, process: str, unit_id: int) -> None:
        """It works no more on the unit, if it did and is there still."""
        known = self._processes.get(process)
        if known is None:
            return
        known.backups.discard(unit_id)
        if unit_id in known.units:
            known.units.remove(unit_id)
            known.idle_since = self._clock()

    def num_free_places(self) -> int:
        """Free places of the processes that have had no unit of their own for a moment."""
        now = self._clock()
        return sum(
            self._units_in_flight - len(process.backups)
            for process in self._processes.values()
            if not process.units and now - process.idle_since >= _IDLE_AFTER_S
        )
