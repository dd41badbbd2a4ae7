"""The dead letters of a run: which rows failed, why, and which of them are to be tried again."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipeline.errors import Stage
from pipeline.inputs.units import WorkUnit, row_name
from pipeline.inputs.values import visible
from pipeline.run.directory import RunDirectory
from pipeline.run.reading import read_ahead
from pipeline.run.unit_rows import read_errors

_MAX_MESSAGES = 10_000  # different ones: messages may quote their row
_LONGEST_SHOWN = 100  # characters of a message


@dataclass(frozen=True)
class Wanted:
    """Which failed rows to try again: those of these stages and these error types; without names, all."""

    stages: tuple[Stage, ...] = ()
    error_types: tuple[str, ...] = ()

    def takes(self, error: Mapping[str, Any]) -> bool:
        """Tell whether an error row, given as a dict of its columns, is to be tried again."""
        return (not self.stages or error["stage"] in self.stages) and (
            not self.error_types or error["error_type"] in self.error_types
        )


@dataclass
class DeadLetters:
    """Counts of failed rows by (stage, error type) and by message, and the wanted rows of each unit.

    `examples` has the first row and message of each kind. `messages` counts the first thousands of different messages.
    """

    num_rows: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], str] = field(default_factory=dict)
    messages: Counter[str] = field(default_factory=Counter)
    num_wanted: Counter[int] = field(default_factory=Counter)
    wanted_ids: dict[int, array[int]] = field(default_factory=dict)  # the row ids of the same, by unit
    wanted_types: set[str] = field(default_factory=set)

    def add(self, unit_id: int, errors: pa.Table, wanted: Wanted) -> None:
        """Count the error rows of one more unit."""
        for error in errors.to_pylist():
            kind = (error["stage"], error["error_type"])
            self.num_rows[kind] += 1
            name = row_name(error["id"], error["file"], error["row_number"])
            self.examples.setdefault(kind, f"{name}: {error['message']}")
            if error["message"] in self.messages or len(self.messages) < _MAX_MESSAGES:
                self.messages[error["message"]] += 1
            if wanted.takes(error):
                self.num_wanted[unit_id] += 1
                self.wanted_ids.setdefault(unit_id, array("q")).append(error["row_id"])
                self.wanted_types.add(error["error_type"])


@dataclass(frozen=True)
class FailedUnits:
    """The units of a run that have failed rows to try again, in order; small enough to send to other processes."""

    run_path: str
    num_wanted: Counter[int]  # unit id -> rows

    @property
    def num_units(self) -> int:
        """Number of these units."""
        return len(self.num_wanted)

    @property
    def num_rows(self) -> int:
        """Rows to try again in all of them."""
        return self.num_wanted.total()

    def __iter__(self) -> Iterator[WorkUnit]:
        return (unit for unit in RunDirectory.open(self.run_path).units() if unit.unit_id in self.num_wanted)


def shown(message: str) -> str:
    """Return the beginning of a message, as one line of a terminal shows it."""
    first_line = visible((message.splitlines() or [""])[0])
    return first_line if len(first_line) <= _LONGEST_SHOWN else first_line[:_LONGEST_SHOWN] + "..."


def find_dead_letters(run_directory: RunDirectory, wanted: Wanted) -> DeadLetters:
    """Count the error rows of all committed units; error rows of units that are not committed do not count.

    Only errors/ is read, so a stale error row, whose generations a retry wrote before it died, counts as well. Raises
    ValueError, naming the file, if one is damaged, and OSError.
    """
    letters = DeadLetters()
    for unit_id, errors in _error_tables(run_directory, run_directory.committed_unit_ids()):
        letters.add(unit_id, errors, wanted)
    return letters


def count_still_failing(run_directory: RunDirectory, letters: DeadLetters) -> int:
    """Count the wanted rows that still have an error row after all of them have been tried."""
    return sum(
        len(set(letters.wanted_ids[unit_id]).intersection(errors["row_id"].to_pylist()))
        for unit_id, errors in _error_tables(run_directory, letters.wanted_ids)
    )


def _error_tables(run_directory: RunDirectory, unit_ids: Iterable[int]) -> Iterator[tuple[int, pa.Table]]:
    """Yield (unit id, error rows) for each of these units that has error rows."""
    failed = sorted(run_directory.failed_unit_ids().intersection(unit_ids))
    tables = read_ahead(lambda unit_id: read_errors(run_directory, unit_id), failed, num_at_once=16)
    return zip(failed, tables, strict=True)
