"""Driving units through a pool of workers on Ray, for a person who watches and may stop it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import ray

from actors.ledger import start_ledger
from jobs.cluster import start_ray
from jobs.config import RunConfig
from jobs.plan import Plan
from jobs.progress import Progress
from jobs.stopping import GracefulStop
from pipeline.dataset import ActorPool, stream_units
from pipeline.receipt import Receipt
from pipeline.run_directory import RunDirectory
from pipeline.units import WorkUnit


def drive(
    units: Sequence[WorkUnit],
    num_rows: int,
    worker: type,
    plan: Plan,
    config: RunConfig,
    pool: ActorPool,
    run_directory: RunDirectory,
    **worker_arguments: Any,
) -> Iterator[Receipt]:
    """The receipts of the units as they are done; fewer than the units if SIGTERM stops it.

    `worker` is a Generator; `worker_arguments` go to it besides those that each has. `num_rows` are those to do.
    """
    start_ray(config)
    ledger = start_ledger()
    worker_arguments |= {
        "settings": plan.settings,
        "run_path": run_directory.location.name,
        "input_options": plan.input_options,
        "carried": plan.carried,
        "ledger": ledger,
        "hang_timeout_s": config.run.hang_timeout_s,
    }
    stop = GracefulStop(lambda: ray.get(ledger.stop.remote()), config.run.grace_period_s)
    with stop, Progress(len(units), num_rows, config.run.progress) as progress:
        for receipt in stream_units(units, worker, worker_arguments, pool, config.run.no_progress_timeout_s):
            progress.add(receipt.counts)
            yield receipt
    repeated = ray.get(ledger.summary.remote())
    if any(repeated.values()):
        print(_describe_repeats(repeated), file=sys.stderr)


def _describe_repeats(repeated: dict[str, int]) -> str:
    return (
        f"{repeated['num_deaths']} worker processes died over units, {repeated['num_repeated_units']} attempts were "
        f"repeated, {repeated['num_condemned_rows']} rows were given up because they kill their process"
    )
