"""How a run spreads over actors: from the moment when all are ready to the last receipt, beside what is ideal."""

import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray

from actors.units.ledgers import start_ledger
from benchmarks.scale.runs import missing_units, plan_run, stream, write_prompts
from benchmarks.scale.simulated import SimulatedRows, SimulatedWorker
from pipeline.counts import Counts
from pipeline.run.progress.missing import MissingUnits
from pipeline.streaming.pool import ActorPool


@dataclass(frozen=True)
class Spread:
    """A run on some actors."""

    num_actors: int
    num_units: int
    seconds: float
    ideal_seconds: float
    control_seconds: float = 0.0  # of CPU, in the driver and the ledger, until the last receipt


def simulate(
    num_actors: int, folder: Path, *, units_per_actor: int, rows_per_unit: int, round_s: float, rounds_per_row: int
) -> Spread:
    """Measure with workers that sleep for `rounds_per_row` rounds of `round_s` seconds over each unit."""
    folder.mkdir()
    write_prompts(folder / "prompts.jsonl", num_actors * units_per_actor * rows_per_unit)
    missing = missing_units(plan_run(folder / "prompts.jsonl", folder / "run", rows_per_unit))
    arguments = {
        "run_path": missing.run_path,
        "rows": SimulatedRows(round_s, rounds_per_row),
    }
    pool = ActorPool(min_actors=num_actors, max_actors=num_actors, num_cpus=1 / 64)
    seconds, counts, control = measure_actors(missing, SimulatedWorker, arguments, pool)
    assert counts.num_rows == missing.num_rows
    return Spread(num_actors, missing.num_units, seconds, units_per_actor * rounds_per_row * round_s, control)


def measure_actors(
    missing: MissingUnits, worker: type, worker_arguments: Mapping[str, Any], pool: ActorPool
) -> tuple[float, Counts, float]:
    """Return the seconds from the moment when all actors are ready to the last receipt, the counts, and control's CPU.

    That is what the driver and the ledger took from the first receipt to the last one.
    """
    ledger = start_ledger(
        units_in_flight=pool.num_units_at_once, max_waiting=2 * pool.max_actors * pool.num_units_at_once + 16
    )
    ready_at: list[float] = []

    def watch() -> None:
        while ray.get(ledger.num_joined.remote()) < pool.max_actors:
            time.sleep(0.05)
        ready_at.append(time.perf_counter())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    counts, ended, used = Counts(), 0.0, list[float]()
    for receipt in stream(missing, ledger, _begin_together(worker, pool.max_actors), worker_arguments, pool):
        used = used or [_control_seconds(ledger)]
        counts += receipt.counts
        ended = time.perf_counter()
    watcher.join()
    return ended - ready_at[0], counts, _control_seconds(ledger) - used[0]


def _control_seconds(ledger: Any) -> float:
    """Return the seconds of CPU that this process and the ledger's have used."""
    return time.process_time() + float(ray.get(ledger.__ray_call__.remote(lambda _: time.process_time())))


def _begin_together(worker: type, num_actors: int) -> type:
    """Return a worker that begins when `num_actors` processes are ready, so that their start is not measured."""

    class Together(worker):  # type: ignore[misc]
        async def __call__(self, batch: pa.Table) -> pa.Table:
            while await self.ledger.num_joined.remote() < num_actors:
                await asyncio.sleep(0.2)
            receipts: pa.Table = await super().__call__(batch)
            return receipts

    return Together
