"""Auditor: judges units that other places of a run wrote, beside the units that its own process does."""

import asyncio
import logging
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from actors.engines.loading import LoadedEngine
from actors.errors import describe
from actors.units.unit_record import Signal
from actors.units.worker import UnitWorker
from actors.workers.written_again import Again, RecordedRow
from pipeline.inputs.units import WorkUnit
from pipeline.logs import Event
from pipeline.run.check import check_units, quarantine
from pipeline.run.commit import Receipt, work_of
from pipeline.run.unit_rows import read_unit_rows
from pipeline.streaming.calls import UnitError

_LOOK_EVERY_S = 2.0  # for a unit to audit, for the verdict on one, and to say that an audit goes on
_GONE = "its part is gone"  # the process that moved it away has said why, and ended before it could reopen the unit
Outcome = Receipt | UnitError | None
Work = Coroutine[Any, Any, Outcome]
_log = logging.getLogger(__name__)


class Auditor:
    """A thread with the event loop in which a worker's units run, and with them the audits that its ledger asks for.

    Both are in one loop, since they share an engine. An idle process audits, too.
    """

    def __init__(self, worker: UnitWorker, engine: LoadedEngine) -> None:
        """Prepare audits with the rows and the engine of a worker."""
        self._worker, self._ledger, self._process = worker, worker.ledger, worker.workplace.process
        self._again = Again(engine, worker.rows)
        self._loop = asyncio.new_event_loop()

    def start(self) -> None:
        """Begin. It lasts as long as its process."""
        threading.Thread(target=self._loop.run_forever, name="auditor", daemon=True).start()
        self._watch = asyncio.run_coroutine_threadsafe(self._audit_all(), self._loop)

    async def outcome(self, unit: WorkUnit, work: Work) -> Outcome:
        """Return what comes of this work over a unit, in the event loop of the audits, once its own has ended."""
        judged = self._until_judged(unit, work)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(judged, self._loop))

    async def _until_judged(self, unit: WorkUnit, work: Work) -> Outcome:
        outcome = await work
        while isinstance(outcome, Receipt):
            answer: Signal | str = await self._ledger.verdict.remote(unit.unit_id)
            if answer is not Signal.WAIT:
                return outcome if answer is Signal.GO else None if answer is Signal.STOP else UnitError(answer)
            await asyncio.sleep(_LOOK_EVERY_S)
        return outcome

    async def _audit_all(self) -> None:
        place = self._worker.workplace
        while True:
            unit = None
            try:
                if self._worker.failure is None:  # a process that has failed is replaced, and judges nothing
                    unit = await self._ledger.next_audit.remote(self._process, place.node, place.card or place.host)
                if unit is not None:
                    await self._audit(unit)
            except Exception as error:  # noqa: BLE001 - the ledger is busy, or gone with its run; the next look tells
                _log.debug(Event("not audited", failure=describe(error)))
            if unit is None:
                await asyncio.sleep(_LOOK_EVERY_S)

    async def _audit(self, unit: WorkUnit) -> None:
        """Judge a unit and tell the ledger. The part of one that fails is moved away; what is in it names no place."""
        stays = asyncio.ensure_future(self._say_that_it_goes_on(unit))
        try:
            files, problem, writer = await self._judged(unit)
            if problem == _GONE or await self._ledger.audit_ended.remote(unit.unit_id, self._process, problem, writer):
                reason = f"unit {unit.unit_id}, {problem}: it is not what the target writes (run.audit_fraction)"
                with suppress(FileNotFoundError):
                    await asyncio.to_thread(quarantine, self._worker.run, dict.fromkeys(files, reason))
                await self._ledger.reopen.remote(unit.unit_id, self._process)
        except Exception as error:  # noqa: BLE001 - another process may be able to
            await self._ledger.audit_lost.remote(unit.unit_id, self._process, describe(error))
            await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            stays.cancel()

    async def _say_that_it_goes_on(self, unit: WorkUnit) -> None:
        while await self._ledger.audits.remote(unit.unit_id, self._process):
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _judged(self, unit: WorkUnit) -> tuple[list[str], str | None, str | None]:
        """Return the files of a unit, what is wrong with them (None: nothing), and which process says that it wrote."""
        run, name = self._worker.run, f"part-{unit.unit_id:09d}.parquet"
        places = {"data": run.part_path(unit.unit_id), "errors": run.errors_path(unit.unit_id)}
        has = {folder: await asyncio.to_thread(place.exists) for folder, place in places.items()}
        files = [f"{folder}/{name}" for folder in places if has[folder]]
        if not has["data"]:
            return files, _GONE, None
        if (await asyncio.to_thread(check_units, run, [(unit, name, True, has["errors"])])).damaged:
            return files, "its rows or counts do not add up", None
        rows, read = await asyncio.to_thread(lambda: (read_unit_rows(run, unit), self._worker.units.read(run, unit)))
        work = work_of(rows.generations.schema)
        writer = None if work is None else work.process
        if writer == self._process:
            return files, None, writer
        async with self._worker.workplace.lock.shared():
            recorded = [RecordedRow.of(unit, rows, row) for row in read]
            found = await self._again.compared(row for row in recorded if row.is_checkable)
        first = next((each for _, _, each in found if each is not None and not each.is_near_tie), None)
        if first is None and (failed := [name for name, was_written, _ in found if not was_written]):
            raise ValueError(f"row {failed[0]} could not be written again, for want of memory or of the target")
        return files, None if first is None else f"row {first.row}, {first.place}", writer
