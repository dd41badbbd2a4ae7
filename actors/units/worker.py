"""UnitWorker: a process that turns units into committed parts and receipts. A subclass generates the rows."""

import asyncio
import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from actors.errors import describe
from actors.units.ledger import Attempt, Group
from actors.units.workplace import Workplace
from pipeline.counts import count_generations
from pipeline.errors import ErrorRow, RowError
from pipeline.inputs.options import InputOptions
from pipeline.inputs.rows import InputRow, RowPosition, read_unit, result_or_error
from pipeline.inputs.units import WorkUnit
from pipeline.run.commit import Receipt, Work, commit_part, read_receipt
from pipeline.run.directory import RunDirectory
from pipeline.schema import errors_table, generations_table
from pipeline.storage.location import Location
from pipeline.streaming.stream import UnitError, calls_in, outcomes_table

_CONDEMNED = (
    "the process that ran this row alone died, twice; out of memory, or a fault in a kernel that this row sets off"
)
_LOOK_EVERY_S = 2.0  # between two looks whether another process has committed a unit that runs here


class EncodedInput(Protocol):
    """A row that is ready to run."""

    @property
    def row(self) -> InputRow:
        """Return the row as it was read."""


_Row = TypeVar("_Row", bound=EncodedInput)


class UnitWorker(ABC, Generic[_Row]):
    """A worker for the units of one run. As a Ray Data worker each call is one unit; several may be under way."""

    def __init__(
        self,
        run_path: str,
        input_options: InputOptions,
        carried: Mapping[str, pa.DataType],
        ledger: Any,
        workplace: Workplace,
    ) -> None:
        """Open the run. `ledger` is the actor of its Ledger. The subclass calls `_join` when it is ready."""
        self._ledger, self._reporter = ledger, workplace.reporter
        self._process, self._node, self._lock = workplace.process, workplace.node, workplace.lock
        self._input_options = input_options
        self._carried = carried
        self._failure: str | None = None  # the reason why no unit can run here, which the first unit reports
        try:
            self._run_directory = RunDirectory.open(run_path)
        except (ValueError, OSError) as error:
            self._failure = f"a worker cannot open the run, which every node must see: {describe(error)}"

    @abstractmethod
    def _encode(self, row: InputRow, ordinal: int) -> _Row:
        """Return the row ready to run. `ordinal` is its place in the whole input. Raises RowError."""

    @abstractmethod
    async def _finish(self, rows: list[_Row]) -> None:
        """Return when these rows have run. Cancelled, it drops the rows that have not."""

    @abstractmethod
    def _decode(self, row: _Row) -> list[dict[str, Any]]:
        """Return the generation rows of a row that has run. Raises RowError."""

    def _facts(self) -> dict[str, str | bool | int]:
        """Return facts about the engine for the footer of each part."""
        return {}

    def _round_seconds(self) -> tuple[float, ...]:
        """Return what a round takes by its draft length, where the engine has measured that."""
        return ()

    def _join(self) -> None:
        """Tell the ledger that this process is ready to work."""
        self._ledger.join.remote(self._process)

    async def __call__(self, batch: pa.Table) -> pa.Table:
        """Return the outcomes of a table of calls (`pipeline.streaming.stream`)."""
        return outcomes_table([await self._outcome(call.unit, call.is_backup) for call in calls_in(batch)])

    async def _outcome(self, unit: WorkUnit, is_backup: bool) -> Receipt | UnitError | None:
        if self._failure is not None:
            return UnitError(self._failure)
        try:
            return await self._attempt(unit, is_backup)
        except Exception as error:  # noqa: BLE001 - handed to the driver, which stops the run with it
            self._reporter.unit_failed(unit, error)
            return UnitError(f"unit {unit.unit_id} of {unit.file}: {describe(error)}")

    async def _attempt(self, unit: WorkUnit, is_backup: bool) -> Receipt | None:
        """Return the unit's receipt, or None if the unit may not begin: the run is stopping, or needs no backup."""
        receipt = await self._committed(unit)
        if receipt is not None:
            await self._ledger.finish.remote(unit.unit_id)  # the process that committed it may have died before this
            return receipt
        attempt: Attempt | None = await self._ledger.begin.remote(
            unit.unit_id, unit.num_rows, self._process, self._node, is_backup
        )
        if attempt is None:
            return await self._committed(unit)
        self._reporter.begun(unit, attempt, is_backup)
        started = time.monotonic()
        async with self._lock.exclusive() if attempt.is_careful else self._lock.shared():
            rows, errors = await asyncio.to_thread(self._read, unit)
            if attempt.is_careful:
                finished = await self._finish_carefully(unit, rows)
            else:
                finished = (rows, []) if await self._finish_first(unit, rows) else None
            if finished is None:
                return await self._committed(unit)
            rows, condemned = finished
            errors += condemned
            receipt = await asyncio.to_thread(self._commit, unit, rows, errors, attempt.number, started)
        self._reporter.committed(receipt, errors)
        await self._ledger.finish.remote(unit.unit_id)
        return receipt

    async def _committed(self, unit: WorkUnit) -> Receipt | None:
        """Return the receipt of a unit that another attempt has committed, or None."""
        try:
            return await asyncio.to_thread(read_receipt, self._run_directory, unit.unit_id)
        except FileNotFoundError:
            return None

    async def _finish_first(self, unit: WorkUnit, rows: list[_Row]) -> bool:
        """Run the rows. Return False, and drop the rest, if another process commits the unit first."""
        work = asyncio.ensure_future(self._finish(rows))
        elsewhere = asyncio.ensure_future(self._wait_until_committed(unit))
        try:
            await asyncio.wait({work, elsewhere}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()  # raises what it raised
                return True
            elsewhere.result()
            return False
        finally:
            work.cancel()
            elsewhere.cancel()
            await asyncio.gather(work, elsewhere, return_exceptions=True)

    async def _wait_until_committed(self, unit: WorkUnit) -> None:
        """Return when another process has committed the unit."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if await self._ledger.is_finished.remote(unit.unit_id):
                return

    async def _finish_carefully(self, unit: WorkUnit, rows: list[_Row]) -> tuple[list[_Row], list[ErrorRow]] | None:
        """Run the groups of rows that the ledger names; return the rows that finished, and errors for the condemned.

        Return None if another process has committed the unit.
        """
        by_index = {unit.row_index(row.row.row_id): row for row in rows}
        unfinished = dict(by_index)
        while True:
            group: Group | None = await self._ledger.next_group.remote(unit.unit_id)
            if group is None:
                return None
            if not group.rows:
                break
            await self._finish([unfinished.pop(index) for index in group.rows if index in unfinished])
        condemned = [by_index[index] for index in group.condemned if index in by_index]
        await self._finish([row for index, row in unfinished.items() if index not in group.condemned])
        error = RowError("generate", _CONDEMNED, "WorkerDied")
        return (
            [row for index, row in by_index.items() if index not in group.condemned],
            [self._dead_letter(unit, row.row, error) for row in condemned],
        )

    def _read(self, unit: WorkUnit) -> tuple[list[_Row], list[ErrorRow]]:
        """Return every row of the unit, either encoded or as an error."""
        rows: list[_Row] = []
        errors: list[ErrorRow] = []
        for row in self._read_rows(unit):
            if isinstance(row, ErrorRow):
                self._reporter.row_failed(row, None)
                errors.append(row)
                continue
            ordinal = unit.first_ordinal + unit.row_index(row.row_id)
            encoded = result_or_error("encode", row, unit.file, self._encode, row, ordinal)
            if isinstance(encoded, ErrorRow):
                self._reporter.row_failed(encoded, row)
                errors.append(encoded)
            else:
                rows.append(encoded)
        return rows, errors

    def _read_rows(self, unit: WorkUnit) -> list[InputRow | ErrorRow]:
        """Return the unit's rows. If the storage fails midway by something that can pass, read again from the start."""
        source = Location.parse(unit.file)
        types = self._carried, self._run_directory.id_type
        return source.retrying("reading", lambda: list(read_unit(unit, self._input_options, *types)))

    def _commit(
        self, unit: WorkUnit, rows: list[_Row], errors: list[ErrorRow], attempt: int, started: float
    ) -> Receipt:
        """Write the generations and errors of all rows, whole or not at all."""
        generations: list[dict[str, Any]] = []
        for encoded in rows:
            decoded = result_or_error("generate", encoded.row, unit.file, self._decode, encoded)
            if isinstance(decoded, ErrorRow):
                self._reporter.row_failed(decoded, encoded.row)
                errors.append(decoded)
            else:
                generations += decoded
        table = generations_table(generations, self._run_directory.generations_schema)
        errors.sort(key=lambda error: error.row_id)
        return self._write(unit, table, errors, attempt, time.monotonic() - started)

    def _write(self, unit: WorkUnit, table: pa.Table, errors: list[ErrorRow], attempt: int, seconds: float) -> Receipt:
        run, counts = self._run_directory, count_generations(table, len(errors))
        error_rows = errors_table(errors, run.id_type)
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # which Linux counts in KiB
        work = Work(time.time(), round(seconds, 3), peak, self._process, self._round_seconds())
        return commit_part(run, unit, table, error_rows, counts, attempt, seconds, self._facts(), work)

    def _dead_letter(self, unit: WorkUnit, row: InputRow, error: RowError) -> ErrorRow:
        dead = RowPosition(row.row_id, unit.file, row.row_number).error(error, row.user_id)
        self._reporter.row_failed(dead, row)
        return dead
