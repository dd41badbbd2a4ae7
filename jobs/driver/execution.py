"""Execution of units from the ledger to the last receipt: by a pool of actors, or in this process, without Ray."""

import asyncio
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from actors.drafts.roster import roster_of
from actors.engines import backend_of
from actors.heartbeat import Heartbeat
from actors.metric_table import ROWS_LEFT, UNITS_LEFT
from actors.metrics import Metrics
from actors.units.feed import UnitFeed
from actors.units.ledger import Ledger
from actors.units.ledgers import LocalLedger, start_ledger
from actors.units.unit_record import Signal
from actors.units.workplace import Workplace
from actors.workers.engine_worker import EngineWorker, WorkerSpec
from decoding.choices import NEED_A_MODEL
from decoding.pace.learned import Learned
from jobs.driver.cluster import cluster_in_words, start_ray
from jobs.driver.plan import Plan
from jobs.driver.progress import BETWEEN_BEATS_S, Progress
from jobs.driver.stopping import graceful_stop
from jobs.driver.watches import (
    hand_out_drafts,
    watch_for_drafts,
    watch_for_drains,
    watch_for_engines,
    watch_for_orphans,
    watch_for_shortage,
    watch_for_texts,
    watching,
)
from pipeline.id_set import IdSet
from pipeline.inputs.units import WorkUnit
from pipeline.logs import Event
from pipeline.run.commit import Receipt
from pipeline.run.dead_letters import FailedUnits
from pipeline.run.progress.draft_choice import DraftTurns
from pipeline.run.progress.draft_versions import DraftVersions
from pipeline.run.progress.lease import Lease
from pipeline.run.progress.missing import MissingUnits
from pipeline.storage.location import Location
from pipeline.streaming.calls import UnitError, UnitsLeft
from pipeline.streaming.pool import ActorPool

_Outcome = Receipt | UnitError | None
_MAX_POOLS = 8  # in a row that are lost without a unit done in between
_TELL_WITHIN_S = 10.0
_LOST_FOR_GOOD = (
    ray.exceptions.UnserializableException,
    ray.exceptions.ActorDiedError,
    ray.exceptions.ActorUnavailableError,
)
_REPEATS = {  # what `Ledger.summary` counts, for a reader
    "num_deaths": "worker processes died over units",
    "num_repeated_units": "attempts were repeated",
    "num_condemned_rows": "rows were given up because they kill their process",
    "num_handed_back": "units were given back by places that failed or were drained",
    "num_backups": "units were also begun by idle actors (run.backup_units)",
    "num_audits": "units were found right by the audit of another place (run.audit_fraction)",
    "num_failed_audits": "units failed their audit and were done again",
    "num_lost_audits": "units were not audited, since no audit of them came to an end",
}
_log = logging.getLogger(__name__)


def execute(
    units: MissingUnits | FailedUnits,
    spec: WorkerSpec,
    plan: Plan,
    *,
    lease: Lease,
    backups: bool = True,
) -> Iterator[Receipt]:
    """Yield one receipt for each unit as it is committed; fewer if Ctrl-C or SIGTERM stops the run.

    Each process of the plan's pool is an EngineWorker that is told `spec`. Without `backups` no unit has one, whatever
    `run.backup_units` says: for work that two processes must not do at once. Starts Ray, unless the run is local, shows
    progress, tells the lease how many engines are up, and says what was repeated. Raises what `stream_units` raises.
    """
    if not units.num_units:
        return
    run, settings, pool = plan.config.run, plan.settings, plan.pool_for(units)
    models = plan.config.generator.models
    names = [Path(path).name for path in (models.target, models.draft) if path is not None]
    most = f" (at most {pool.max_actors})" if pool.max_actors > pool.num_at_once else ""
    engines = f"{pool.num_at_once} engine{'s' if pool.num_at_once > 1 else ''}{most}"
    loading = f"loading {' and '.join(names)} in {'this process' if run.local else engines}"
    progress = Progress(run.progress, loading if run.local else "starting Ray")
    draft = models.draft if settings.engine.pick_drafter(settings.models.draft) in NEED_A_MODEL else None
    progress.planned(units.num_units, units.num_rows, plan.texts_per_row, draft)
    with progress:
        is_watched = progress.console.is_terminal and progress.mode != "none"  # not in a log, which others may read
        before = DraftTurns.of(Location.parse(spec.run_path)) if settings.turns else None
        learned = None if before is None else Learned(before.leader, before.ratios)
        spec = replace(spec, tells_text=is_watched and run.show_texts != 0, learned=learned)
        if run.local:
            spec = replace(spec, tells_every_s=BETWEEN_BEATS_S)
            yield from in_process(units, spec, plan, pool.num_units_at_once, progress, lease)
            return
        audit_fraction = 0.0 if isinstance(units, FailedUnits) else run.audit_fraction
        spec = replace(spec, audits=audit_fraction > 0)
        start_ray(run.ray_address)
        progress.note(cluster_in_words(run.ray_address))
        progress.say(loading)
        # Units that may wait behind those in work: one for each place of an actor, and as many on the way to it.
        ledger = start_ledger(
            units_in_flight=pool.num_units_at_once,
            max_waiting=2 * pool.max_actors * pool.num_units_at_once + 16,
            num_places=pool.num_at_once,
            places_timeout_s=run.places_timeout_s,
            audit_fraction=audit_fraction,
        )
        # Where two attempts may write different tokens the faster one is no fair draw: it wrote less.
        # Two attempts at a program may meet different results of tools, and fail on different rows.
        is_repeatable = backend_of(settings).is_repeatable and not plan.task.runs_programs
        has_backups = backups and is_repeatable and run.backup_units and pool.max_actors > 1
        feed = UnitFeed(units, ledger, backups=has_backups)
        output = plan.config.output.path
        name = Location.parse(output).short_name
        with (
            graceful_stop(lambda: ray.get(ledger.stop.remote()), run.grace_period_s),
            roster_of(settings, name, run.logs, pool.num_at_once) as roster,
            watching(watch_for_shortage, pool, ledger, settings),
            watching(watch_for_orphans) if settings.stages.is_apart else nullcontext(),
            watching(watch_for_engines, ledger, pool.num_at_once, progress),
            watching(watch_for_drains, ledger, roster),
            _published(progress, name, ledger, lease),
            watching(watch_for_drafts, output, settings, ledger, roster),
        ):
            given = {"spec": spec, "ledger": ledger, "roster": roster}
            try:
                for receipt in _receipts(feed, units.num_units, given, pool, run.no_progress_timeout_s):
                    progress.add(receipt.counts)
                    yield receipt
            except (UnitError, *_LOST_FOR_GOOD) as error:
                if not _stops(ledger):
                    said = "this run's ledger, a process beside the driver, has died; was its node's memory too small?"
                    raise UnitError(said) from error
                raise
        with suppress(ValueError, OSError):  # the texts are there, whatever became of a draft
            hand_out_drafts(DraftVersions(output), settings, ledger)  # since the last look
        _keep_learned(ray.get(ledger.learned.remote()), spec)
        summary = ray.get(ledger.summary.remote())
        if repeats := [f"{summary[what]} {text}" for what, text in _REPEATS.items() if summary[what]]:
            print(", ".join(repeats), file=sys.stderr)
        if draft_work := ray.get(ledger.draft_work.remote()):
            print(draft_work, file=sys.stderr)
        for cause in ray.get(ledger.place_failures.remote(ever=True)):
            print(f"a place that failed: {cause}", file=sys.stderr)


def _stops(ledger: Any) -> bool:
    """Let no unit begin that is queued behind one that failed; return False if the ledger has died."""
    until = time.monotonic() + _TELL_WITHIN_S
    while (left := until - time.monotonic()) > 0:
        try:
            ray.get(ledger.stop.remote(), timeout=left)
        except ray.exceptions.ActorDiedError:
            return False
        except ray.exceptions.ActorUnavailableError:  # which a dead one is for a moment
            time.sleep(0.1)
        except ray.exceptions.RayError:
            break
        else:
            break
    return True


def _published(progress: Progress, run: str, ledger: Any, lease: Lease) -> Heartbeat:
    """Return a context in which metrics tell how much of the run is left, and the driver's storage retries.

    The lease tells how many engines are up, for `dray status`.

    Warnings of the processes, whose own logs are files of Ray, are logged here too, once for all processes.
    """
    metrics, told = Metrics(run), set[str]()

    def publish() -> None:
        for metric, number in zip((UNITS_LEFT, ROWS_LEFT), progress.left(), strict=True):
            metrics.set(metric, number)
        metrics.add_storage_retries()
        with suppress(ray.exceptions.RayError):  # the ledger is busy, or the run has just ended
            asked = ledger.num_joined, ledger.place_failures, ledger.draft_work, ledger.warnings
            found = ray.get([question.remote() for question in asked], timeout=_TELL_WITHIN_S)
            lease.num_engines, lease.failed_places, lease.draft_work, warnings = found
            for text in warnings:
                if text not in told:
                    _log.warning(text)
                    told.add(text)

    return Heartbeat(publish)


def _receipts(
    feed: UnitFeed, num_units: int, given: Mapping[str, Any], pool: ActorPool, timeout_s: float
) -> Iterator[Receipt]:
    """Yield the receipts of `stream_units`, once each, with a new pool of actors where Ray gives up the old one.

    Ray 2.60 restarts an actor whose process or node died, but not always one whose node died while it was being
    started: it takes that for a failure of the actor itself, with an empty exception (ray issue 18586).
    """
    from pipeline.streaming.stream import stream_units  # Ray Data, which takes a second to load and a local run lacks

    def has_ended() -> bool:
        return bool(ray.get(feed.ledger.has_ended.remote()))

    done, num_in_a_row = IdSet(), 0
    while True:
        left = replace(feed, done=IdSet(done))
        try:
            for receipt in stream_units(left, num_units - len(done), EngineWorker, given, pool, timeout_s, has_ended):
                if done.add(receipt.unit_id):
                    num_in_a_row = 0
                    yield receipt
            if len(done) == num_units or ray.get(feed.ledger.is_stopping.remote()):
                return
            # A place gave a unit back when the feed had ended.
            raise UnitsLeft("; ".join(ray.get(feed.ledger.place_failures.remote())) or "units were not done")
        except (*_LOST_FOR_GOOD, UnitsLeft) as error:
            num_in_a_row += 1
            if num_in_a_row > _MAX_POOLS:
                raise
            _log.warning(
                Event("pool made anew", error_type=type(error).__name__, units_done=len(done), in_a_row=num_in_a_row)
            )
            ray.get(feed.ledger.dismiss.remote())


def in_process(
    units: Iterable[WorkUnit], spec: WorkerSpec, plan: Plan, num_at_once: int, progress: Progress, lease: Lease
) -> Iterator[Receipt]:
    """Yield one receipt for each unit as it is committed; fewer if Ctrl-C or SIGTERM stops the run.

    The engine works on `num_at_once` units at once. Raises UnitError at the first unit that cannot be done.
    """
    ledger, run = Ledger(units_in_flight=num_at_once), plan.config.run
    workplace = Workplace.beside(Location.parse(spec.run_path).short_name, run.logs)
    worker = EngineWorker(replace(spec, follows_drafts=False), LocalLedger(ledger), workplace=workplace)
    lease.num_engines = 1
    progress.engines_up(1, 1)
    todo, in_flight = iter(units), set[asyncio.Task[_Outcome]]()

    async def outcomes() -> list[_Outcome]:
        """Return what became of the units that are done next; an empty list when no unit is left."""
        while len(in_flight) < num_at_once and (unit := next(todo, None)) is not None:
            if ledger.hand_out(unit) is Signal.STOP:  # it has none to wait for: all units in flight are here
                break
            in_flight.add(asyncio.ensure_future(worker.outcome(unit)))
        done, rest = await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED) if in_flight else ((), ())
        in_flight.intersection_update(rest)
        return [task.result() for task in done]

    with (
        graceful_stop(ledger.stop, run.grace_period_s),
        watching(watch_for_texts, ledger, progress),
        asyncio.Runner() as runner,
    ):
        while done := runner.run(outcomes()):
            progress.written(*ledger.written(), ledger.first_text())
            for outcome in done:
                if isinstance(outcome, UnitError):
                    raise outcome
                if outcome is not None:
                    progress.add(outcome.counts)
                    yield outcome
    _keep_learned(ledger.learned(), spec)


def _keep_learned(learned: Learned | None, spec: WorkerSpec) -> None:
    """Keep what engines have learned of drafters that take turns, for the report and for who goes on."""
    if learned is not None:
        found = DraftTurns(leader=learned.leader, ratios=learned.ratios, drafts=learned.figures())
        found.write(Location.parse(spec.run_path))
