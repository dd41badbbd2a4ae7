"""Units of batches, done by an engine that also answers requests."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from actors.engine.translation import EncodedRow
from actors.engines.loading import LoadedEngine
from actors.rows.plain import PlainRows
from actors.units.ledgers import LedgerOfRun
from actors.units.unit_rows import WholeUnits
from actors.units.worker import UnitWorker, open_run
from actors.units.workplace import Workplace
from decoding.sampling_params import SamplingParams
from decoding.scope import Scope
from decoding.sequence import Sequence
from pipeline.errors import RowError
from pipeline.inputs.options import InputOptions
from pipeline.inputs.rows import InputRow
from pipeline.inputs.units import WorkUnit
from pipeline.logs import LogSettings
from pipeline.run.commit import Receipt
from pipeline.streaming.calls import UnitError

BATCH_INPUT = InputOptions(format="openai_batch")


@dataclass(frozen=True, kw_only=True)
class UnitOrder:
    """A unit that a replica is to do. `sampling` has the parameters of rows that give none of their own."""

    run_path: str
    unit: WorkUnit
    sampling: SamplingParams
    ledger: LedgerOfRun
    owner: str = ""  # of the batch, as of a Generation
    fingerprint: str = ""  # of the engine that must write it; empty: any engine


@dataclass(frozen=True, kw_only=True)
class SharedEngine:
    """The engine of a replica, as units of batches see it."""

    engine: LoadedEngine
    scope_of: Callable[[str], Scope]  # of an owner's rows
    finish: Callable[[list[Sequence]], Awaitable[None]]  # in the background; cancelled, it drops what has not run
    workplace: Workplace = field(default_factory=lambda: Workplace.beside("batches", LogSettings()))


class _BatchRows(PlainRows):
    """Rows of one batch. They get the tokens that `dray generate` writes for them."""

    def encode(self, row: InputRow, ordinal: int) -> EncodedRow:
        encoded = super().encode(row, ordinal)
        if (problem := self.engine.problem_with(encoded.sequences[0])) is not None:
            raise RowError("encode", problem)
        return encoded


def unit_worker(shared: SharedEngine, order: UnitOrder) -> UnitWorker:
    """Return a worker for the units of the order's batch. Raises ValueError if its run cannot be opened."""
    run, engine, codec = open_run(order.run_path), shared.engine, shared.engine.codec
    if (moment := run.run["identity"].get("moment")) is not None:
        codec = replace(codec, moment=datetime.fromisoformat(moment))
    settings, scope = replace(engine.settings, sampling=order.sampling), shared.scope_of(order.owner)
    rows = _BatchRows(settings, engine.loop.engine, codec, shared.finish, scope=scope)
    return UnitWorker(run, rows, WholeUnits(BATCH_INPUT, {}), order.ledger, shared.workplace, engine.footer)


async def do_unit(shared: SharedEngine, order: UnitOrder) -> Receipt | UnitError | None:
    """Return the receipt of the unit, the reason why it could not be done, or None if it may not begin."""
    try:
        worker = await asyncio.to_thread(unit_worker, shared, order)
    except ValueError as error:
        return UnitError(str(error))
    return await worker.outcome(order.unit)
