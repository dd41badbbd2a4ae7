"""Diary: a file in which each worker process writes what it does; tests use it to time their faults and to count."""

import os
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """One thing that a process did. `unit` is -1 where it is about the process itself."""

    pid: int
    node: str
    what: str
    unit: int


@dataclass(frozen=True)
class Diary:
    """Entries in one file of lines, appended by many processes at once (short lines to O_APPEND do not mix).

    A process is "loading", then "loaded"; a unit has an "attempt", is "running", "committing" and "committed" there.
    """

    path: Path

    def write(self, node: str, what: str, unit: int = -1) -> None:
        """Append one entry of this process."""
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, f"{os.getpid()} {node} {what} {unit}\n".encode())
        finally:
            os.close(file)

    def entries(self) -> list[Entry]:
        """Return all entries so far, in order."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines()
        return [Entry(int(pid), node, what, int(unit)) for pid, node, what, unit in map(str.split, lines)]

    def num_attempts(self) -> Counter[int]:
        """Return how often each unit was begun."""
        return Counter(entry.unit for entry in self.entries() if entry.what == "attempt")

    def processes(self) -> dict[int, str]:
        """Return the living processes, loading or loaded, with their nodes."""
        return {entry.pid: entry.node for entry in self.entries() if is_alive(entry.pid)}

    def in_flight(self) -> dict[int, set[int]]:
        """The units that each living process has begun and not committed; a process with none is not in it."""
        units: dict[int, set[int]] = defaultdict(set)
        for entry in self.entries():
            if entry.what == "attempt":
                units[entry.pid].add(entry.unit)
            elif entry.what == "committed":
                units[entry.pid].discard(entry.unit)
        return {pid: begun for pid, begun in units.items() if begun and is_alive(pid)}

    def loading(self) -> set[int]:
        """The living processes whose models are not loaded yet."""
        entries = self.entries()
        loaded = {entry.pid for entry in entries if entry.what == "loaded"}
        return {entry.pid for entry in entries if entry.pid not in loaded and is_alive(entry.pid)}


def is_alive(pid: int) -> bool:
    """Tell whether a process runs or is stopped; one that is gone or a zombie is not alive."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
