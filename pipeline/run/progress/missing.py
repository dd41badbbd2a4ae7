"""The units that a run has yet to do, read from its manifest as a stream, never all in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from pipeline.id_set import IdSet
from pipeline.inputs.units import WorkUnit
from pipeline.run.directory import RunDirectory

_UNITS_PER_WINDOW = 10_000


@dataclass(frozen=True)
class MissingUnits:
    """The units of a run that were not committed when this was made. It is small enough to send to other processes.

    Every iteration yields the same units in the same order: within each window of some thousand units the largest come
    first, so that no large unit is left for the end. The windows are equal, since a short last one would end on large
    units.
    """

    run_path: str
    committed: IdSet
    num_units: int
    num_rows: int
    tokens_per_row: int  # that a row may generate; a unit's size is estimated from these and its prompts' length

    @classmethod
    def of(cls, run_directory: RunDirectory, tokens_per_row: int) -> MissingUnits:
        """Find the units that are missing now, with one listing of data/ and one reading of the manifest."""
        committed = run_directory.committed_unit_ids()
        num_units = num_rows = 0
        for unit in run_directory.units():
            if unit.unit_id not in committed:
                num_units += 1
                num_rows += unit.num_rows
        return cls(run_directory.location.name, committed, num_units, num_rows, tokens_per_row)

    def __iter__(self) -> Iterator[WorkUnit]:
        units = (unit for unit in RunDirectory.open(self.run_path).units() if unit.unit_id not in self.committed)
        num_windows = -(-self.num_units // _UNITS_PER_WINDOW)
        while window := list(islice(units, -(-self.num_units // max(1, num_windows)))):
            yield from sorted(window, key=self._max_tokens, reverse=True)

    def _max_tokens(self, unit: WorkUnit) -> int:
        return unit.estimated_tokens + unit.num_rows * self.tokens_per_row
