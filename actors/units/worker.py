"""UnitWorker: what turns units into committed parts and receipts, whatever is done with their rows; its Workplace."""

from __future__ import annotations

import asyncio
import resource
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import ray

from actors.errors import describe
from actors.units.ledger import Attempt, Group
from actors.units.reporter import Reporter
from actors.units.unit_rows import Done, WholeUnits
from pipeline.errors import ErrorRow, RowError
from pipeline.inputs.rows import InputRow, RowPosition, result_or_error
from pipeline.inputs.units import WorkUnit
from pipeline.logs import LogSettings, set_up_logs
from pipeline.run.commit import Receipt, Work
from pipeline.run.directory import RunDirectory
from pipeline.schema import generations_table
from pipeline.storage.location import Location
from pipeline.streaming.stream import UnitError, packed, unpacked


class SharedLock:
    """A lock of one event loop. A task that waits for it alone is not overtaken by tasks that come later."""

    def __init__(self) -> None:
        self._entry = asyncio.Lock()  # wakes its waiters in the order in which they came
        self._num_holders = 0
        self._is_free = asyncio.Event()
        self._is_free.set()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Hold the lock together with other tasks."""
        async with self._entry:
            self._num_holders += 1
            self._is_free.clear()
        try:
            yield
        finally:
            self._num_holders -= 1
            if not self._num_holders:
                self._is_free.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the lock alone: keep other tasks from entering, and wait until those inside have left."""
        async with self._entry:
            await self._is_free.wait()
            yield


@dataclass(frozen=True)
class Workplace:
    """A process as its ledger knows it, with the lock and the reporter that all units in it share."""

    reporter: Reporter
    node: str
    process: str = field(default_factory=lambda: uuid.uuid4().hex)
    lock: SharedLock = field(default_factory=SharedLock)

    @classmethod
    def of_run(cls, run_path: str, log_settings: LogSettings) -> Workplace:
        """Set up the log of a process that works for one run alone: stderr, in Ray a file. Return its workplace."""
        run, context = Location.parse(run_path).short_name, ray.get_runtime_context()
        node = context.get_node_id()
        set_up_logs(log_settings, run=run, job=context.get_job_id(), node=node, worker=context.get_worker_id())
        return cls(Reporter(run, log_settings), node)

    @classmethod
    def beside(cls, run: str, log_settings: LogSettings) -> Workplace:
        """Return the workplace of a process that has a log of its own, and does units beside something else."""
        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
        return cls(Reporter(run, log_settings), node)


_CONDEMNED = (
    "the process that ran this row alone died, twice; out of memory, or a fault in a kernel that this row sets off"
)
_LOOK_EVERY_S = 2.0  # between two looks whether another process has committed a unit that runs here


class RowKind(Protocol):
    """Rows of one kind, as a base of its classes. What `encode` returns has the InputRow as `row`, and is run."""

    def encode(self, row: InputRow, ordinal: int) -> Any:
        """Return the row ready to run. `ordinal` is its place in the whole input. Raises RowError."""

    async def finish(self, rows: list[Any]) -> None:
        """Return when these rows have run. Cancelled, it drops the rows that have not."""

    def decode(self, row: Any) -> list[dict[str, Any]]:
        """Return the generation rows of a row that has run. Raises RowError."""

    def committed(self, unit_id: int, row_ids: set[int]) -> None:
        """Learn that these rows are in the unit's part, for a kind that keeps something until then."""
        return


@dataclass(eq=False)
class UnitWorker:
    """A worker for the units of one run. As a Ray Data worker each call is one unit; several may be under way."""

    run: RunDirectory
    rows: RowKind  # what is done with a row
    units: WholeUnits  # which rows of a unit, and where they are written
    ledger: Any  # the actor of the run's Ledger, or a LocalLedger in this process
    workplace: Workplace
    engine_facts: Mapping[str, str | bool | int] = field(default_factory=dict)  # for the footer of each part
    round_seconds: tuple[float, ...] = ()  # what a round takes by its draft length, where that was measured
    failure: str | None = field(default=None, init=False)  # why no unit can run here: the first unit reports it

    async def __call__(self, batch: pa.Table) -> pa.Table:
        """Return the outcomes of a table of calls (`pipeline.streaming.stream`)."""
        return packed([await self.outcome(call.unit, call.is_backup) for call in unpacked(batch)])

    async def outcome(self, unit: WorkUnit, is_backup: bool = False) -> Receipt | UnitError | None:
        """Return the receipt of a unit, the reason why it could not be done, or None if it may not begin."""
        if self.failure is not None:
            return UnitError(self.failure)
        try:
            return await self._attempt(unit, is_backup)
        except Exception as error:  # noqa: BLE001 - handed to the driver, which stops the run with it
            self.workplace.reporter.unit_failed(unit, error)
            return UnitError(f"unit {unit.unit_id} of {unit.file}: {describe(error)}")

    async def _attempt(self, unit: WorkUnit, is_backup: bool) -> Receipt | None:
        """Return the unit's receipt, or None if the unit may not begin: the run is stopping, or needs no backup."""
        committed = partial(self.units.committed, self.run, unit, self.ledger)
        receipt = await committed()
        if receipt is not None:
            await self.ledger.finish.remote(unit.unit_id)  # the process that committed it may have died before this
            return receipt
        attempt: Attempt | None = await self.ledger.begin.remote(
            unit.unit_id, unit.num_rows, self.workplace.process, self.workplace.node, is_backup
        )
        if attempt is None:
            return await committed()
        self.workplace.reporter.begun(unit, attempt, is_backup)
        started = time.monotonic()
        async with self.workplace.lock.exclusive() if attempt.is_careful else self.workplace.lock.shared():
            rows, errors = await asyncio.to_thread(self._read, unit)
            if attempt.is_careful:
                finished = await self._finish_carefully(unit, rows)
            else:
                finished = (rows, []) if await self._finish_first(unit, rows) else None
            if finished is None:
                return await committed()
            rows, condemned = finished
            errors += condemned
            receipt = await asyncio.to_thread(self._commit, unit, rows, errors, attempt.number, started)
        self.workplace.reporter.committed(receipt, errors)
        await self.ledger.finish.remote(unit.unit_id)
        return receipt

    async def _finish(self, rows: list[Any]) -> None:
        """Return when these rows have run. Cancelled, it drops the rows that have not. Fault tests take its place."""
        await self.rows.finish(rows)

    async def _finish_first(self, unit: WorkUnit, rows: list[Any]) -> bool:
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
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if await self.ledger.is_finished.remote(unit.unit_id):
                return

    async def _finish_carefully(self, unit: WorkUnit, rows: list[Any]) -> tuple[list[Any], list[ErrorRow]] | None:
        """Run the groups of rows that the ledger names; return the rows that finished, and errors for the condemned.

        Return None if another process has committed the unit.
        """
        by_index = {unit.row_index(row.row.row_id): row for row in rows}
        unfinished = dict(by_index)
        while True:
            group: Group | None = await self.ledger.next_group.remote(unit.unit_id)
            if group is None:
                return None
            if not group.rows:
                break
            await self._finish([unfinished.pop(index) for index in group.rows if index in unfinished])
        await self._finish([row for index, row in unfinished.items() if index not in group.condemned])
        errors: list[ErrorRow] = []
        for row in (by_index.pop(index).row for index in group.condemned if index in by_index):
            place = RowPosition(row.row_id, unit.file, row.row_number)
            errors.append(place.error(RowError("generate", _CONDEMNED, "WorkerDied"), row.user_id))
            self.workplace.reporter.row_failed(errors[-1], row)
        return list(by_index.values()), errors

    def _read(self, unit: WorkUnit) -> tuple[list[Any], list[ErrorRow]]:
        """Return every row of the unit, either encoded or as an error."""
        rows: list[Any] = []
        errors: list[ErrorRow] = []
        for row in self.units.read(self.run, unit):
            if isinstance(row, ErrorRow):
                self.workplace.reporter.row_failed(row, None)
                errors.append(row)
                continue
            ordinal = unit.first_ordinal + unit.row_index(row.row_id)
            encoded = result_or_error("encode", row, unit.file, self.rows.encode, row, ordinal)
            if isinstance(encoded, ErrorRow):
                self.workplace.reporter.row_failed(encoded, row)
                errors.append(encoded)
            else:
                rows.append(encoded)
        return rows, errors

    def _commit(self, unit: WorkUnit, rows: list[Any], errors: list[ErrorRow], attempt: int, started: float) -> Receipt:
        """Write the generations and errors of all rows, whole or not at all."""
        generations: list[dict[str, Any]] = []
        for encoded in rows:
            decoded = result_or_error("generate", encoded.row, unit.file, self.rows.decode, encoded)
            if isinstance(decoded, ErrorRow):
                self.workplace.reporter.row_failed(decoded, encoded.row)
                errors.append(decoded)
            else:
                generations += decoded
        table = generations_table(generations, self.run.generations_schema)
        errors.sort(key=lambda error: error.row_id)
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # which Linux counts in KiB
        seconds = round(time.monotonic() - started, 3)
        work = Work(time.time(), seconds, peak, self.workplace.process, self.round_seconds)
        receipt = self.units.write(self.run, unit, table, errors, Done(attempt, work, self.engine_facts))
        self.rows.committed(unit.unit_id, {row_id for row_id in table["row_id"].to_pylist() if row_id is not None})
        return receipt


def open_run(path: str) -> RunDirectory:
    """Open the run for a worker. Raises ValueError if it cannot be opened from this node."""
    try:
        return RunDirectory.open(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"a worker cannot open the run, which every node must see: {describe(error)}") from error
