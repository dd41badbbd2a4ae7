"""UnitWorker: what turns units into committed parts and receipts, whatever is done with their rows; its Workplace."""

import asyncio
import logging
import resource
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Protocol

import pyarrow as pa
import ray

from actors.engine.watchdog import end_process
from actors.errors import DeviceFault, describe
from actors.units.unit_record import Attempt, Group, Signal
from actors.units.unit_rows import Done, WholeUnits
from actors.units.workplace import Workplace
from pipeline.errors import ErrorRow, RowError
from pipeline.inputs.rows import InputRow, RowPosition, result_or_error
from pipeline.inputs.units import WorkUnit
from pipeline.logs import Event
from pipeline.run.commit import Receipt, Work
from pipeline.run.directory import RunDirectory
from pipeline.schema import generations_table
from pipeline.streaming.calls import PlaceFailedError, UnitError, packed, unpacked

_CONDEMNED = (
    "the process that ran this row alone died, twice; out of memory, or a fault in a kernel that this row sets off"
)
_LOOK_EVERY_S = 2.0  # between two looks whether another process has committed a unit that runs here


_log = logging.getLogger(__name__)


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
    failure: str | None = field(default=None, init=False)  # why no unit can be done here until the process is replaced
    under_way: dict[str, tuple[WorkUnit, list[Any]]] = field(default_factory=dict, init=False)  # by call: units, rows

    async def __call__(self, batch: pa.Table) -> pa.Table:
        """Return the outcomes of a table of calls (`pipeline.streaming.calls`)."""
        return packed([await self.outcome(call.unit, call.is_backup) for call in unpacked(batch)])

    async def outcome(self, unit: WorkUnit, is_backup: bool = False) -> Receipt | UnitError | None:
        """Return the receipt of a unit, the reason why it could not be done, or None if it is not done here.

        It is not if the run is stopping, or if another process does it: the call was a backup that is not needed, or
        this place failed and gave the unit back.
        """
        while True:
            try:
                outcome = await (self._attempt if self.failure is None else self._decline)(unit, is_backup)
            except Exception as error:  # noqa: BLE001 - handed to the driver, which stops the run with it
                self.workplace.reporter.unit_failed(unit, error)
                if not self.workplace.gives_back or not is_of_place(error):
                    kind = PlaceFailedError if is_of_place(error) else UnitError
                    return kind(f"unit {unit.unit_id} of {unit.file}: {describe(error)}")
                if isinstance(error, DeviceFault):
                    self.failure = describe(error)
                await self.tell_failure(f"{describe(error)} (over unit {unit.unit_id} of {unit.file})", unit)
            else:
                if not isinstance(outcome, Signal):
                    return outcome
                if not self.workplace.gives_back:
                    return UnitError(self.failure or "the place has failed")
            answer = await self._hold(unit)
            if answer is Signal.STOP:
                if self.failure is None:
                    # The storage may be what failed. The other call, or a new pool, then brings the receipt.
                    with suppress(OSError, ValueError):
                        return await self.units.committed(self.run, unit, self.ledger)
                return None
            if isinstance(answer, str):
                return UnitError(answer)
            if self.failure is not None:
                end_process(Event("process replaced", failure=self.failure))  # Ray starts another one

    def tell_failure(self, cause: str, unit: WorkUnit | None = None) -> Any:
        """Tell the ledger that this place failed, over a unit or before any; return what can be awaited."""
        place = self.workplace
        return self.ledger.place_failed.remote(
            place.process,
            place.node,
            f"{where}: {cause}" if (where := place.card or place.host) else cause,
            report=uuid.uuid4().hex,
            unit_id=None if unit is None else unit.unit_id,
            is_broken=self.failure is not None,
            actor=place.actor,
            card=place.card,
        )

    async def _decline(self, unit: WorkUnit, is_backup: bool) -> Signal:
        """Give a unit back that this process cannot begin."""
        await self.ledger.decline.remote(unit.unit_id, self.workplace.process)
        return Signal.WAIT

    async def _hold(self, unit: WorkUnit) -> Signal | str:
        """Hold a call while this place gets no units; return what the ledger says then."""
        while True:
            answer: Signal | str = await self.ledger.held.remote(unit.unit_id, self.workplace.process)
            if answer is not Signal.WAIT:
                return answer
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _attempt(self, unit: WorkUnit, is_backup: bool) -> Receipt | Signal | None:
        """Return the unit's receipt, None if it is not done here, or WAIT if this place gets no units now."""
        committed = partial(self.units.committed, self.run, unit, self.ledger)
        receipt = await committed()
        if receipt is not None:
            await self._tell_finished(unit, "")  # the process that committed it may have died before this
            return receipt
        call, place = uuid.uuid4().hex, self.workplace
        attempt: Attempt | Signal | None = await self.ledger.begin.remote(
            unit.unit_id, unit.num_rows, place.process, place.node, is_backup, call, place.actor, place.card
        )
        if attempt is None:
            return await committed()
        if isinstance(attempt, Signal):
            return attempt
        place.reporter.begun(unit, attempt, is_backup)
        started = time.monotonic()
        if attempt.is_trial:
            await asyncio.to_thread(self.run.try_writing)
        async with place.lock.exclusive() if attempt.is_careful else place.lock.shared():
            rows, errors = await asyncio.to_thread(self._read, unit)
            self.under_way[call] = unit, rows
            try:
                if attempt.is_careful:
                    finished = await self._finish_carefully(unit, rows, call)
                else:
                    finished = (rows, []) if await self._finish_first(unit, rows) else None
                # A process that was thought dead and has come back must write nothing: it asks, and waits to hear.
                if finished is None or not await self.ledger.holds.remote(unit.unit_id, place.process):
                    return await committed()
                rows, condemned = finished
                errors += condemned
                receipt = await asyncio.to_thread(self._commit, unit, rows, errors, attempt.number, started)
                place.reporter.committed(receipt, errors)
            finally:
                del self.under_way[call]
        await self._tell_finished(unit, "" if receipt.already_committed else place.process)
        return receipt

    async def _tell_finished(self, unit: WorkUnit, process: str) -> None:
        """Tell the ledger that a unit is committed, and by which process; empty if that is not known."""
        try:
            await self.ledger.finish.remote(unit.unit_id, process)
        except ray.exceptions.RayError:  # the ledger is gone; the driver, if it is there, gets the receipt
            _log.warning(Event("commit not told", unit=unit.unit_id))

    async def _finish(self, rows: list[Any]) -> None:
        """Return when these rows have run. Cancelled, it drops the rows that have not. Fault tests take its place."""
        await self.rows.finish(rows)

    async def _finish_first(self, unit: WorkUnit, rows: list[Any]) -> bool:
        """Run the rows. Return False, and drop the rest, if another process commits the unit first or is to do it."""
        work = asyncio.ensure_future(self._finish(rows))
        elsewhere = asyncio.ensure_future(self._wait_until_lost(unit))
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

    async def _wait_until_lost(self, unit: WorkUnit) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if not await self.ledger.holds.remote(unit.unit_id, self.workplace.process):
                return

    async def _finish_carefully(
        self, unit: WorkUnit, rows: list[Any], call: str
    ) -> tuple[list[Any], list[ErrorRow]] | None:
        """Run the groups of rows that the ledger names; return the rows that finished, and errors for the condemned.

        Return None if another process has committed the unit or is to do it.
        """
        by_index = {unit.row_index(row.row.row_id): row for row in rows}
        unfinished = dict(by_index)
        numbers = count()
        while True:
            group: Group | None = await self.ledger.next_group.remote(unit.unit_id, call, next(numbers))
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


def is_of_place(error: Exception) -> bool:
    """Tell whether an error is the failure of a process or its node, not of the unit that it came over."""
    return isinstance(error, OSError | DeviceFault)


def open_run(path: str) -> RunDirectory:
    """Open the run for a worker. Raises ValueError if it cannot be opened from this node."""
    try:
        return RunDirectory.open(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"a worker cannot open the run, which every node must see: {describe(error)}") from error
