"""Driving units through the pool: what commands that generate share, from the ledger to the last receipt."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ray

from actors.ledger import start_ledger
from jobs.config import RunConfig
from jobs.progress import Progress
from jobs.stopping import GracefulStop
from pipeline.dataset import ActorPool, stream_units
from pipeline.receipt import Receipt
from pipeline.units import WorkUnit


class Units(Protocol):
    """Units in an order of their own."""

    @property
    def num_units(self) -> int:
        """How many there are."""

    @property
    def num_rows(self) -> int:
        """Rows to do in all of them."""

    def __iter__(self) -> Iterator[WorkUnit]:
        """Each of them."""


@dataclass(frozen=True)
class ListedUnits:
    """Units of which every row is to be done."""

    units: Sequence[WorkUnit]

    @property
    def num_units(self) -> int:
        """How many there are."""
        return len(self.units)

    @property
    def num_rows(self) -> int:
        """Rows in all of them."""
        return sum(unit.num_rows for unit in self.units)

    def __iter__(self) -> Iterator[WorkUnit]:
        """Each of them, in the order of the list."""
        return iter(self.units)


def drive(
    units: Units, worker: type, worker_arguments: Mapping[str, Any], pool: ActorPool, config: RunConfig
) -> Iterator[Receipt]:
    """One receipt for each unit as it is done; fewer if the run is stopped by SIGTERM. Ray must have been started.

    `worker` is built with `worker_arguments` and `ledger`, the run's Ledger, an actor, and is what
    `pipeline.dataset.stream_units` wants. Shows progress; says what was repeated. Raises what `stream_units` raises.
    """
    ledger = start_ledger()
    stop = GracefulStop(lambda: ray.get(ledger.stop.remote()), config.run.grace_period_s)
    with stop, Progress(units.num_units, units.num_rows, config.run.progress) as progress:
        arguments = {**worker_arguments, "ledger": ledger}
        for receipt in stream_units(units, worker, arguments, pool, config.run.no_progress_timeout_s):
            progress.add(receipt.counts)
            yield receipt
    repeated = ray.get(ledger.summary.remote())
    if any(repeated.values()):
        print(describe_repeats(repeated), file=sys.stderr)


def describe_repeats(summary: Mapping[str, int]) -> str:
    """What `Ledger.summary` counted, for a person."""
    return (
        f"{summary['num_deaths']} worker processes died over units, {summary['num_repeated_units']} attempts were "
        f"repeated, {summary['num_condemned_rows']} rows were given up because they kill their process"
    )
