"""BatchDriver: one batch, from the check of its file to its results.

It goes on with what it finds, so a process that dies costs the units that were under way. Its states are written whole,
and its results have the same ids and the same content each time they are written.
"""

import asyncio
import logging
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

from actors.engine.requests import OtherModelError
from actors.errors import describe
from actors.units.ledgers import LedgerOfRun
from actors.workers.batch_worker import UnitOrder
from endpoint.batches.batch import Batch, BatchError, CheckedInput, Status
from endpoint.batches.run import BatchModel, Workshop, receipts_of, sampling_of, write_results
from pipeline.export.openai_batch import NotRun
from pipeline.id_set import IdSet
from pipeline.inputs.units import WorkUnit
from pipeline.logs import Event
from pipeline.run.commit import Receipt
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.lease import Lease, hold_lease
from pipeline.streaming.calls import PlaceFailedError, UnitError

_SAVE_EVERY_S = 1.0  # the counts, while units are done
_LOOK_EVERY_S = 5.0  # whether the lease is lost
_MAX_TRIES = 5  # of a unit that fails though no process died, and no replica's storage or device
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0  # between them; each wait is twice the one before
_OTHER_MODEL_S = 1.0  # to wait for a replica of the batch's model while an update is rolled out
_log = logging.getLogger(__name__)

End = Literal["completed", "cancelled", "expired", "failed"]
_NOT_RUN: dict[End, NotRun | None] = {
    "completed": None,
    "cancelled": NotRun("batch_cancelled", "This request was not executed, because the batch was cancelled."),
    "expired": NotRun(
        "batch_expired", "This request could not be executed before the completion window of the batch expired."
    ),
    "failed": NotRun("batch_failed", "This request was not executed, because the batch could not go on."),
}


class BatchFailed(Exception):
    """The batch cannot go on; the message is for its owner."""


class BatchDriver:
    """The driver of one batch."""

    def __init__(self, batch: Batch, workshop: Workshop) -> None:
        """Begin with a batch as it is on storage."""
        self._batch, self._shop = batch, workshop
        self._cancelled = asyncio.Event()

    def cancel(self) -> None:
        """End the batch with what it has."""
        self._cancelled.set()

    async def drive(self) -> None:
        """Bring the batch to its end. Raises LeaseHeld if another process drives it, and what the storage raises."""
        if self._batch.status == "validating":
            await self._check()
        if self._batch.status in ("in_progress", "cancelling", "finalizing"):
            try:
                await self._write()
            except BatchFailed as error:
                await self._fail(str(error))
            except ValueError as error:  # what is on storage is damaged
                _log.error(Event("batch failed", batch=self._batch.id, failure=describe(error)))
                await self._fail("the server cannot read what it has written of this batch", has_results=False)
        await self._shop.ledgers.forget.remote(self._run_path.name)
        _log.info(Event("batch ended", batch=self._batch.id, status=self._batch.status, rows=self._batch.num_rows))

    @property
    def _run_path(self) -> Any:
        return self._shop.batches.run(self._batch)

    async def _check(self) -> None:
        """Check the input file: the batch is then in progress, or has ended."""
        batch, content = self._batch, self._shop.files.content(self._batch.owner, self._batch.input_file_id)
        rules = self._shop.rules(batch.endpoint)
        try:
            found = await asyncio.to_thread(CheckedInput(rules).check, content)
        except FileNotFoundError:
            found = CheckedInput(rules, (BatchError(code="file_not_found", message="The input file is gone."),))
        adapter = found.model if found.model in self._shop.models else None
        self._batch = replace(batch, num_rows=found.num_rows, model=found.model or batch.model, adapter=adapter)
        if found.errors:
            await self._become("failed", errors=found.errors)
        elif self._cancelled.is_set():
            await self._become("cancelling")
        else:
            await self._become("in_progress")

    async def _write(self) -> None:
        """Do the units that are missing and write the results, alone."""
        batch = self._batch
        content = self._shop.files.content(batch.owner, batch.input_file_id)
        try:
            run_directory = await asyncio.to_thread(self._model.open_run, self._run_path, content, batch.endpoint)
        except ValueError as error:
            raise BatchFailed(_of_model(error)) from error
        with ExitStack() as held:
            lease = await asyncio.to_thread(held.enter_context, hold_lease(run_directory))
            newest = await asyncio.to_thread(self._shop.batches.read, self._batch.owner, self._batch.id)
            if newest is None or newest.status not in ("in_progress", "cancelling", "finalizing"):
                return  # another process has ended it
            self._batch = newest
            receipts, missing = await asyncio.to_thread(receipts_of, run_directory)
            await self._save(receipts)
            end: End = "cancelled" if self._batch.status == "cancelling" else "completed"
            if missing:
                end = await self._write_units(run_directory, missing, receipts, lease)
            if end == "cancelled" and self._batch.status != "cancelling":
                await self._become("cancelling")
            elif end == "completed" and self._batch.status != "finalizing":
                await self._become("finalizing")
            await self._end(end, run_directory, receipts)

    @property
    def _model(self) -> BatchModel:
        """The model that writes the batch. Raises BatchFailed if it is not served any more."""
        model = self._shop.models.get(self._batch.adapter)
        if model is None:
            raise BatchFailed(f"the model {self._batch.model!r} is not served any more")
        return model

    async def _write_units(
        self, run_directory: RunDirectory, missing: list[WorkUnit], receipts: dict[int, Receipt], lease: Lease
    ) -> End:
        """Give the units away; return how this ended. Units that are under way at another end are dropped."""
        left, tasks, saved_at = iter(missing), set[asyncio.Task[Receipt]](), time.monotonic()
        cancelled = asyncio.create_task(self._cancelled.wait())
        try:
            while True:
                if self._cancelled.is_set() or self._batch.status == "cancelling":
                    return "cancelled"
                seconds_left = self._batch.expires_at - self._shop.clock()
                if seconds_left <= 0:
                    return "expired"
                lease.refuse_if_lost()
                while len(tasks) < self._shop.max_units and (unit := next(left, None)) is not None:
                    tasks.add(asyncio.create_task(self._receipt_of(run_directory, unit)))
                if not tasks:
                    return "completed"
                await asyncio.wait(
                    {*tasks, cancelled},
                    timeout=min(seconds_left, _LOOK_EVERY_S),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in [task for task in tasks if task.done()]:
                    tasks.remove(task)
                    receipt = task.result()
                    receipts[receipt.unit_id] = receipt
                if time.monotonic() - saved_at >= _SAVE_EVERY_S:
                    await self._save(receipts)
                    saved_at = time.monotonic()
        finally:
            cancelled.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(cancelled, *tasks, return_exceptions=True)

    async def _receipt_of(self, run_directory: RunDirectory, unit: WorkUnit) -> Receipt:
        """Return the receipt of a unit, when it is done. Raises BatchFailed if that fails again and again."""
        model = self._model
        order = UnitOrder(
            run_path=run_directory.location.name,
            unit=unit,
            sampling=sampling_of(self._batch.endpoint),
            ledger=LedgerOfRun(self._shop.ledgers, run_directory.location.name),
            owner=self._batch.owner,
            fingerprint=model.served.fingerprint,
        )
        num_tries, wait_s = 0, _FIRST_WAIT_S
        async with model.places:
            while True:
                outcome = await model.units.write_unit(order)
                if isinstance(outcome, Receipt):
                    return outcome
                if isinstance(outcome, OtherModelError):
                    await asyncio.sleep(_OTHER_MODEL_S)
                    continue
                num_tries += not isinstance(outcome, PlaceFailedError)  # another replica may do it, or this one later
                why = outcome if isinstance(outcome, UnitError) else "it may not begin"
                _log.warning(Event("unit of a batch failed", batch=self._batch.id, unit=unit.unit_id, tries=num_tries))
                if num_tries == _MAX_TRIES:
                    _log.error(Event("batch failed", batch=self._batch.id, unit=unit.unit_id, failure=str(why)))
                    first = unit.row_start + 1
                    raise BatchFailed(
                        f"the server failed over requests {first} to {first + unit.num_rows - 1}, {num_tries} times"
                    )
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _end(self, end: End, run_directory: RunDirectory, receipts: dict[int, Receipt]) -> None:
        """Write the results of the units with `receipts`, and the last state."""
        counted, committed = self._batch.with_counts(receipts.values()), IdSet(receipts)
        output_id, error_id = await asyncio.to_thread(
            write_results, self._shop, counted, run_directory, committed, _NOT_RUN[end]
        )
        self._batch = counted
        await self._become(end, output_file_id=output_id, error_file_id=error_id)

    async def _fail(self, message: str, *, has_results: bool = True) -> None:
        error = BatchError(code="batch_failed", message=f"{message[:1].upper()}{message[1:]}.")
        self._batch = replace(self._batch, errors=(error,))
        path = self._run_path
        if has_results and await asyncio.to_thread(RunDirectory.exists, path):
            run_directory = await asyncio.to_thread(RunDirectory.open, path)
            receipts, _ = await asyncio.to_thread(receipts_of, run_directory)
            await self._end("failed", run_directory, receipts)
        else:
            await self._become("failed")

    async def _save(self, receipts: dict[int, Receipt]) -> None:
        self._batch = self._batch.with_counts(receipts.values())
        await asyncio.to_thread(self._shop.batches.replace, self._batch)

    async def _become(self, status: Status, **values: Any) -> None:
        self._batch = self._batch.become(status, self._shop.clock(), **values)
        await asyncio.to_thread(self._shop.batches.replace, self._batch)


def _of_model(error: ValueError) -> str:
    """Return the reason why a run cannot be opened, without paths of the server."""
    if "other tokens" in str(error):
        return "the server has another model, or other settings, than when this batch was begun"
    _log.error(Event("batch not opened", failure=describe(error)))
    return "the server cannot open this batch's run"
