"""UnitWorker: what a process does with units, whatever writes the rows. Units in, committed parts and receipts out."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
import ray

from actors.units.ledger import Attempt, Group
from actors.units.reporter import Reporter
from actors.units.turnstile import Turnstile
from pipeline.counts import count_generations
from pipeline.errors import ErrorRow, RowError, only_this_row
from pipeline.inputs.options import InputOptions
from pipeline.inputs.rows import InputRow, RowPosition, read_unit
from pipeline.inputs.units import WorkUnit
from pipeline.logs import LogSettings
from pipeline.run.commit import Receipt, commit_part, read_receipt
from pipeline.run.directory import RunDirectory
from pipeline.schema import errors_table, generations_schema
from pipeline.storage.location import Location

_CONDEMNED = (
    "the process that ran this row alone died, twice; out of memory, or a fault in a kernel that this row sets off"
)
_RECEIPTS = pa.schema([("receipt", pa.string()), ("failure", pa.string())])
_LOOK_EVERY_S = 2.0  # whether somebody else has committed a unit that runs here


class RowUnderWay(Protocol):
    """A row as the worker runs it."""

    @property
    def row(self) -> InputRow:
        """As it was read."""


_Row = TypeVar("_Row", bound=RowUnderWay)


def describe(error: BaseException) -> str:
    """An exception for a person: a ValueError is its message, anything else also its type."""
    if isinstance(error, ray.exceptions.RayTaskError):  # what an actor raised, wrapped in a traceback
        error = error.cause
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


class UnitWorker(ABC, Generic[_Row]):
    """A Ray Data worker: each call is one unit, and several may be under way. A subclass says what becomes of a row."""

    def __init__(
        self,
        run_path: str,
        input_options: InputOptions,
        carried: Mapping[str, pa.DataType],
        ledger: Any,
        log_settings: LogSettings,
    ) -> None:
        """`ledger` is the run's Ledger, an actor. The subclass calls `_join` when it is ready."""
        self._reporter = Reporter(run_path, log_settings)
        self._ledger = ledger
        self._process = uuid.uuid4().hex
        self._turnstile = Turnstile()
        self._input_options = input_options
        self._carried = carried
        self._schema = generations_schema(carried)
        self._failure: str | None = None  # why nothing can run here: the first unit reports it
        try:
            self._run_directory = RunDirectory.open(run_path)
        except (ValueError, OSError) as error:
            self._failure = f"a worker cannot open the run, which every node must see: {describe(error)}"

    @abstractmethod
    def _encode(self, row: InputRow, ordinal: int) -> _Row:
        """The row, ready to run. `ordinal` is its place in the whole input. Raises RowError."""

    @abstractmethod
    async def _finish(self, rows: list[_Row]) -> None:
        """Return when these have run. When it is cancelled, nobody wants them any more."""

    @abstractmethod
    def _decode(self, row: _Row) -> list[dict[str, Any]]:
        """The generation rows of a row that has run. Raises RowError."""

    def _facts(self) -> dict[str, str | bool | int]:
        """About what generates the rows, for the footer of each part."""
        return {}

    def _join(self) -> None:
        """Tell the ledger that this process is ready to work."""
        self._ledger.join.remote(self._process)

    async def __call__(self, batch: pa.Table) -> pa.Table:
        """Receipts (JSON texts) or failures (messages) for a table of tickets: units (JSON texts), backups or not."""
        rows = [await self._receipt_or_failure(row["unit"], row["is_backup"]) for row in batch.to_pylist()]
        return pa.Table.from_pylist(rows, schema=_RECEIPTS)

    async def _receipt_or_failure(self, unit_text: str, is_backup: bool) -> dict[str, str | None]:
        if self._failure is not None:
            return {"receipt": None, "failure": self._failure}
        unit = WorkUnit.from_dict(json.loads(unit_text))
        try:
            receipt = await (self._generate_backup(unit) if is_backup else self._generate_unit(unit))
        except Exception as error:  # noqa: BLE001 - handed to the driver, which stops the run with it
            return {"receipt": None, "failure": self._describe_failure(unit, error)}
        return {"receipt": None if receipt is None else json.dumps(receipt.to_dict()), "failure": None}

    def _describe_failure(self, unit: WorkUnit, error: Exception) -> str:
        self._reporter.unit_failed(unit, error)
        return f"unit {unit.unit_id} of {unit.file}: {describe(error)}"

    async def _generate_unit(self, unit: WorkUnit) -> Receipt | None:
        """The unit's receipt; None if it was not begun: the run is stopping."""
        return await self._attempt(unit, is_backup=False)

    async def _generate_backup(self, unit: WorkUnit) -> Receipt | None:
        """The same for a unit that another process may be at work on; None also if no backup is wanted any more."""
        return await self._attempt(unit, is_backup=True)

    async def _attempt(self, unit: WorkUnit, is_backup: bool) -> Receipt | None:
        receipt = await self._committed(unit)
        if receipt is not None:
            await self._ledger.finish.remote(unit.unit_id)  # whoever committed it may have died before saying so
            return receipt
        attempt = await self._begin(unit, is_backup)
        if attempt is None:
            return await self._done_elsewhere(unit)
        self._reporter.begun(unit, attempt, is_backup)
        started = time.monotonic()
        async with self._turnstile.alone() if attempt.is_careful else self._turnstile.together():
            rows, errors = await asyncio.to_thread(self._read, unit)
            if attempt.is_careful:
                through = await self._finish_carefully(unit, rows)
            else:
                through = (rows, []) if await self._finish_first(unit, rows) else None
            if through is None:
                return await self._done_elsewhere(unit)
            rows, condemned = through
            errors += condemned
            receipt = await asyncio.to_thread(self._commit, unit, rows, errors, attempt.number, started)
        self._reporter.committed(receipt, errors)
        await self._ledger.finish.remote(unit.unit_id)
        return receipt

    async def _begin(self, unit: WorkUnit, is_backup: bool) -> Attempt | None:
        """Ask the ledger whether and how to run the unit."""
        node = ray.get_runtime_context().get_node_id()
        attempt: Attempt | None = await self._ledger.begin.remote(
            unit.unit_id, unit.num_rows, self._process, node, is_backup
        )
        return attempt

    async def _committed(self, unit: WorkUnit) -> Receipt | None:
        """The receipt of whoever committed the unit; None if nobody has, which is the usual case."""
        try:
            return await asyncio.to_thread(read_receipt, self._run_directory, unit.unit_id)
        except FileNotFoundError:
            return None

    async def _done_elsewhere(self, unit: WorkUnit) -> Receipt | None:
        """The receipt of a unit that another attempt has finished meanwhile; None if none has: the run is stopping."""
        return await self._committed(unit)

    async def _finish_first(self, unit: WorkUnit, rows: list[_Row]) -> bool:
        """Whether the rows finished here; if another process commits the unit before, what is left is dropped."""
        work = asyncio.ensure_future(self._finish(rows))
        elsewhere = asyncio.ensure_future(self._wait_for_another(unit))
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

    async def _wait_for_another(self, unit: WorkUnit) -> None:
        """Return when another process has committed the unit."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if await self._ledger.is_finished.remote(unit.unit_id):
                return

    async def _finish_carefully(self, unit: WorkUnit, rows: list[_Row]) -> tuple[list[_Row], list[ErrorRow]] | None:
        """A few rows at a time, with the ledger's leave; those that came through, and errors for the condemned.

        None if another process has committed the unit.
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
        """Every row of the unit, encoded or as an error."""
        rows: list[_Row] = []
        errors: list[ErrorRow] = []
        for row in self._read_rows(unit):
            if isinstance(row, ErrorRow):
                self._reporter.row_failed(row, None)
                errors.append(row)
                continue
            try:
                with only_this_row("encode"):
                    rows.append(self._encode(row, unit.first_ordinal + unit.row_index(row.row_id)))
            except RowError as error:
                errors.append(self._dead_letter(unit, row, error))
        return rows, errors

    def _read_rows(self, unit: WorkUnit) -> list[InputRow | ErrorRow]:
        """The unit's rows; read again from the start where the storage failed midway by something that can pass."""
        source = Location.parse(unit.file)
        return source.retrying("reading", lambda: list(read_unit(unit, self._input_options, self._carried)))

    def _commit(
        self, unit: WorkUnit, rows: list[_Row], errors: list[ErrorRow], attempt: int, started: float
    ) -> Receipt:
        """Write what came out of every row, whole or not at all."""
        generations = []
        for encoded in rows:
            try:
                with only_this_row("generate"):
                    generations += self._decode(encoded)
            except RowError as error:
                errors.append(self._dead_letter(unit, encoded.row, error))
        table = pa.Table.from_pylist(generations, schema=self._schema)
        errors.sort(key=lambda error: error.row_id)
        return self._write(unit, table, errors, attempt, time.monotonic() - started)

    def _write(
        self, unit: WorkUnit, generations: pa.Table, errors: list[ErrorRow], attempt: int, seconds: float
    ) -> Receipt:
        counts = count_generations(generations, len(errors))
        table = errors_table(errors)
        return commit_part(
            self._run_directory, unit, generations, table, counts, attempt, seconds=seconds, engine=self._facts()
        )

    def _dead_letter(self, unit: WorkUnit, row: InputRow, error: RowError) -> ErrorRow:
        dead = RowPosition(row.row_id, unit.file, row.row_number).error(error, row.user_id)
        self._reporter.row_failed(dead, row)
        return dead
