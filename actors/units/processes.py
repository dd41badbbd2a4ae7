"""ProcessTable: the processes of a run and their units, which tells how many processes are idle."""

from collections.abc import Callable
from dataclasses import dataclass, field

# Seconds after which an idle process gets a backup: a unit that was just handed out takes some time to reach it.
_IDLE_AFTER_S = 1.0


@dataclass
class _Process:
    idle_since: float
    units: set[int] = field(default_factory=set)
    backups: set[int] = field(default_factory=set)


class ProcessTable:
    """Processes by name; each works on `units_in_flight` units at once, of its own or backups of others' units."""

    def __init__(self, units_in_flight: int, clock: Callable[[], float]) -> None:
        """Begin without processes. `clock` returns seconds."""
        self._units_in_flight, self._clock = units_in_flight, clock
        self._processes: dict[str, _Process] = {}

    def __len__(self) -> int:
        return len(self._processes)

    def join(self, process: str) -> None:
        """Add a process, if it is not there."""
        self._processes.setdefault(process, _Process(self._clock()))

    def leave(self, process: str) -> None:
        """Remove a process that has died."""
        self._processes.pop(process, None)

    def dismiss(self) -> set[str]:
        """Remove all processes, and return their names."""
        names = set(self._processes)
        self._processes.clear()
        return names

    def take(self, process: str, unit_id: int, is_backup: bool) -> None:
        """Record that a process begins a unit."""
        self.join(process)
        known = self._processes[process]
        (known.backups if is_backup else known.units).add(unit_id)

    def release(self, process: str, unit_id: int) -> None:
        """Record that a process has left a unit, if it worked on it."""
        known = self._processes.get(process)
        if known is None:
            return
        known.backups.discard(unit_id)
        if unit_id in known.units:
            known.units.remove(unit_id)
            known.idle_since = self._clock()

    def num_free_places(self) -> int:
        """Return the free places of processes that have had no unit of their own for a moment."""
        now = self._clock()
        return sum(
            self._units_in_flight - len(process.backups)
            for process in self._processes.values()
            if not process.units and now - process.idle_since >= _IDLE_AFTER_S
        )
