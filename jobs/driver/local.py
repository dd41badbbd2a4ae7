"""A run in the process of its driver, without Ray: one engine, and as many units at once as an actor has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace

from actors.units.ledger import FeedSignal, Ledger
from actors.units.ledgers import LocalLedger
from actors.units.worker import Workplace
from actors.workers.engine_worker import EngineWorker, WorkerSpec
from jobs.driver.plan import Plan
from jobs.driver.progress import Progress
from jobs.driver.stopping import graceful_stop
from pipeline.inputs.units import WorkUnit
from pipeline.run.commit import Receipt
from pipeline.run.progress.lease import Lease
from pipeline.storage.location import Location
from pipeline.streaming.stream import UnitError

_Outcome = Receipt | UnitError | None


def in_process(
    units: Iterable[WorkUnit], spec: WorkerSpec, plan: Plan, progress: Progress, lease: Lease
) -> Iterator[Receipt]:
    """Yield one receipt for each unit as it is committed; fewer if Ctrl-C or SIGTERM stops the run.

    Raises UnitError at the first unit that cannot be done.
    """
    ledger, run = Ledger(units_in_flight=plan.pool.units_in_flight), plan.config.run
    workplace = Workplace.beside(Location.parse(spec.run_path).short_name, run.logs)
    worker = EngineWorker(replace(spec, follows_drafts=False), LocalLedger(ledger), workplace=workplace)
    lease.num_engines = 1
    progress.engines_up(1, 1)
    todo, in_flight = iter(units), set[asyncio.Task[_Outcome]]()

    async def outcomes() -> list[_Outcome]:
        """Return what became of the units that are done next; an empty list when no unit is left."""
        while len(in_flight) < plan.pool.units_in_flight and (unit := next(todo, None)) is not None:
            if ledger.hand_out(unit) is FeedSignal.STOP:  # it has none to wait for: all units in flight are here
                break
            in_flight.add(asyncio.ensure_future(worker.outcome(unit)))
        done, rest = await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED) if in_flight else ((), ())
        in_flight.intersection_update(rest)
        return [task.result() for task in done]

    with graceful_stop(ledger.stop, run.grace_period_s), asyncio.Runner() as runner:
        while done := runner.run(outcomes()):
            progress.written(*ledger.written())
            for outcome in done:
                if isinstance(outcome, UnitError):
                    raise outcome
                if outcome is not None:
                    progress.add(outcome.counts)
                    yield outcome
