"""WholeUnits and FailedRows: which rows of a unit a worker does, and where it writes them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.counts import Counts
from pipeline.errors import ErrorRow
from pipeline.inputs.options import InputOptions
from pipeline.inputs.rows import InputRow, read_unit
from pipeline.inputs.units import WorkUnit
from pipeline.run.commit import Receipt, Work, amend_part, commit_part, read_receipt
from pipeline.run.dead_letters import Wanted
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import read_unit_rows
from pipeline.schema import errors_table
from pipeline.storage.location import Location


class Done(NamedTuple):
    """How a unit was done."""

    attempt: int
    work: Work
    engine: Mapping[str, str | bool | int]  # facts about what did it


@dataclass(frozen=True)
class WholeUnits:
    """All rows of units that are not committed: each becomes a part."""

    input_options: InputOptions
    carried: Mapping[str, pa.DataType]

    async def committed(self, run: RunDirectory, unit: WorkUnit, ledger: Any) -> Receipt | None:
        """Return the receipt of a unit that another attempt has committed, or None."""
        try:
            return await asyncio.to_thread(read_receipt, run, unit.unit_id)
        except FileNotFoundError:
            return None

    def read(self, run: RunDirectory, unit: WorkUnit) -> list[InputRow | ErrorRow]:
        """Return the unit's rows. If the storage fails midway by something that can pass, read again from the start."""
        types = self.carried, run.id_type
        source = Location.parse(unit.file)
        return source.retrying("reading", lambda: list(read_unit(unit, self.input_options, *types)))

    def write(self, run: RunDirectory, unit: WorkUnit, table: pa.Table, errors: list[ErrorRow], done: Done) -> Receipt:
        """Write what became of the rows, whole or not at all."""
        failed = errors_table(errors, run.id_type, run.column_sets)
        return commit_part(run, unit, table, failed, done.attempt, done.engine, done.work)


@dataclass(frozen=True)
class FailedRows(WholeUnits):
    """The wanted failed rows of committed units: those that succeed now move to the unit's part.

    A row's noise comes from its place in the input, so it gets the tokens that it would have had the first time. The
    receipt counts the rows that were tried again, not the whole unit.
    """

    wanted: Wanted

    async def committed(self, run: RunDirectory, unit: WorkUnit, ledger: Any) -> Receipt | None:
        """Return an empty receipt if another attempt has tried the rows: its own receipt counts them, or was lost."""
        if await ledger.is_finished.remote(unit.unit_id):
            return Receipt(unit.unit_id, Counts(), attempt=0, already_committed=True)
        return None

    def read(self, run: RunDirectory, unit: WorkUnit) -> list[InputRow | ErrorRow]:
        """Return the wanted failed rows that are not in the unit's part: a retry that died may have left some."""
        errors = read_unit_rows(run, unit).errors.to_pylist()
        row_ids = {error["row_id"] for error in errors if self.wanted.takes(error)}
        return [row for row in super().read(run, unit) if row.row_id in row_ids] if row_ids else []

    def write(self, run: RunDirectory, unit: WorkUnit, table: pa.Table, errors: list[ErrorRow], done: Done) -> Receipt:
        """Move the rows that succeeded from the unit's error rows to its part."""
        return amend_part(run, unit, table, errors, done.work.seconds, done.engine)
