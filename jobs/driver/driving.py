"""Driving units through the pool: what commands that generate share, from the ledger to the last receipt."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Protocol

import ray

from actors.drafts.roster import start_roster
from actors.units.feed import Feed
from actors.units.ledger import start_ledger
from jobs.config.run import RunConfig
from jobs.driver.cluster import OrphanWatch, ShortageWatch
from jobs.driver.metrics import publish_progress
from jobs.driver.progress import Progress
from jobs.driver.stopping import GracefulStop
from pipeline.id_set import IdSet
from pipeline.inputs.units import WorkUnit
from pipeline.logs import Event
from pipeline.run.receipt import Receipt
from pipeline.storage.location import Location
from pipeline.streaming.pool import ActorPool
from pipeline.streaming.stream import UnitError, stream_units

_MOST_POOLS = 8  # made anew one after the other, without a unit done in between
_LOST_FOR_GOOD = (
    ray.exceptions.UnserializableException,
    ray.exceptions.ActorDiedError,
    ray.exceptions.ActorUnavailableError,
)
_log = logging.getLogger(__name__)


class Units(Protocol):
    """Units that can be read as a stream, again and again in the same order, also in another process (pickled)."""

    @property
    def num_units(self) -> int:
        """How many there are."""

    @property
    def num_rows(self) -> int:
        """Rows in all of them."""

    def __iter__(self) -> Iterator[WorkUnit]:
        """Each of them."""


def drive(
    units: Units,
    worker: type,
    worker_arguments: Mapping[str, Any],
    pool: ActorPool,
    config: RunConfig,
    *,
    backups: bool = True,
) -> Iterator[Receipt]:
    """One receipt for each unit as it is committed; fewer if the run is stopped by SIGTERM. Ray must have been started.

    `worker` is built with `worker_arguments` and `ledger`, the run's Ledger, an actor, and is what
    `pipeline.streaming.stream.stream_units` wants. Without `backups` no unit has one, whatever `run.backup_units` says:
    for work that two processes must not do at once. Shows progress; says what was repeated. Raises what `stream_units`
    raises.
    """
    # So many may wait behind those that the actors work on: one for each place, and as many again on the way to it.
    most_waiting = 2 * pool.max_actors * pool.units_in_flight + 16
    ledger = start_ledger(pool.units_in_flight, most_waiting)
    # Under rejection two attempts write different tokens, and the faster one is no fair draw: it wrote less.
    is_repeatable = config.generator.engine.verification == "coupled"
    feed = Feed(units, ledger, backups=backups and is_repeatable and config.run.backup_units and pool.max_actors > 1)
    stop = GracefulStop(lambda: ray.get(ledger.stop.remote()), config.run.grace_period_s)
    progress = Progress(units.num_units, units.num_rows, config.run.progress)
    publishing = publish_progress(Location.parse(config.output.path).short_name, progress)
    arguments = {**worker_arguments, "ledger": ledger}
    if config.generator.placement == "split":
        run = Location.parse(config.output.path).short_name
        arguments["roster"] = start_roster(worker_arguments["settings"], run, config.run.logs, pool.num_at_once)
    timeout_s = config.run.no_progress_timeout_s
    settings = worker_arguments.get("settings")
    orphans = OrphanWatch() if config.generator.stages.is_apart else nullcontext()
    with stop, progress, publishing, ShortageWatch(pool, ledger, settings), orphans:
        try:
            for receipt in _receipts(feed, units.num_units, worker, arguments, pool, timeout_s):
                progress.add(receipt.counts)
                yield receipt
        except UnitError:
            ledger.stop.remote()  # nobody begins what is queued behind the unit that failed
            raise
        finally:
            if "roster" in arguments:  # and its draft actors with it: this process may go on with something else
                ray.kill(arguments["roster"])
    said = describe_repeats(ray.get(ledger.summary.remote()))
    if said:
        print(said, file=sys.stderr)


def _receipts(
    feed: Feed, num_units: int, worker: type, arguments: Mapping[str, Any], pool: ActorPool, timeout_s: float
) -> Iterator[Receipt]:
    """Those of `stream_units`, once each, from a new pool of actors where Ray gives up the old one.

    Ray 2.60 starts an actor again whose process or node died, but not always one whose node died while it was being
    started: that it takes for a failure of the actor's own, with an exception that is empty (ray issue 18586).
    """
    done, num_in_a_row = IdSet(), 0
    while True:
        left = replace(feed, done=IdSet(done))
        try:
            for receipt in stream_units(left, num_units - len(done), worker, arguments, pool, timeout_s):
                if done.add(receipt.unit_id):
                    num_in_a_row = 0
                    yield receipt
            return
        except _LOST_FOR_GOOD as error:
            num_in_a_row += 1
            if num_in_a_row > _MOST_POOLS:
                raise
            _log.warning(
                Event("pool made anew", error_type=type(error).__name__, units_done=len(done), in_a_row=num_in_a_row)
            )
            ray.get(feed.ledger.dismiss.remote())


def describe_repeats(summary: Mapping[str, int]) -> str:
    """What `Ledger.summary` counted, for a person; nothing where all is zero."""
    words = {
        "num_deaths": "worker processes died over units",
        "num_repeated_units": "attempts were repeated",
        "num_condemned_rows": "rows were given up because they kill their process",
        "num_backups": "units were also begun by idle actors (run.backup_units)",
    }
    return ", ".join(f"{summary[name]} {said}" for name, said in words.items() if summary[name])
