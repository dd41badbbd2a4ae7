"""What a plan costs: time and memory of the driver, from listing the input to finding most of it committed."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import ray

from actors.units.feed import UnitFeed
from actors.units.ledger import start_ledger
from benchmarks.scale.runs import PROGRESS_TIMEOUT_S, RUN, start_own_ray, write_prompts
from benchmarks.scale.simulated import EmptyWorker
from pipeline.inputs.files import list_files
from pipeline.inputs.options import InputOptions, resolve_options
from pipeline.inputs.units import plan_units
from pipeline.run.directory import RunDirectory
from pipeline.run.missing import MissingUnits
from pipeline.streaming.pool import ActorPool
from pipeline.streaming.stream import stream_units


def measure_plan(num_units: int, rows_per_unit: int, seconds: float, folder: str) -> dict[str, float]:
    """Measure what a plan over `num_units` units of a JSONL file costs; a worker that does nothing takes the units.

    Call it in a process of its own: it reports the peak of the process's memory (MB). Handing out ends after
    `seconds`, or with the last unit.
    """
    source, output = Path(folder) / f"{num_units}.jsonl", Path(folder) / f"{num_units}"
    write_prompts(source, num_units * rows_per_unit)
    start_own_ray()
    figures = {"units": float(num_units), "rows": float(num_units * rows_per_unit), "MB before": _peak_mb()}
    started = time.perf_counter()
    files = list_files(str(source))
    options = resolve_options(files, InputOptions())
    run_directory = RunDirectory.create(str(output), RUN, plan_units(files, options, rows_per_unit))
    missing = MissingUnits.of(run_directory, tokens_per_row=100)
    figures |= {"plan s": time.perf_counter() - started, "MB planned": _peak_mb()}
    ledger = start_ledger(units_in_flight=8, max_waiting=64)
    pool = ActorPool(num_cpus=0.5, units_in_flight=8)
    receipts = stream_units(
        UnitFeed(missing, ledger, backups=False), num_units, EmptyWorker, {"ledger": ledger}, pool, PROGRESS_TIMEOUT_S
    )
    num_done, first = 0, 0.0
    for _ in receipts:
        num_done += 1
        if num_done == 1:
            first = time.perf_counter()
            figures |= {"first unit s": first - started}
        if num_done == 1000:
            figures |= {"MB at 1000": _peak_mb()}
        if time.perf_counter() - first > seconds:
            break
    receipts.close()  # type: ignore[attr-defined]
    figures |= {
        "done": float(num_done),
        "units/s": num_done / (time.perf_counter() - first),
        "MB at the end": _peak_mb(),
    }
    num_left = min(10, num_units)
    for unit_id in range(num_units - num_left):  # as if they had been committed: what a second command finds
        (output / f"data/part-{unit_id:09d}.parquet").touch()
    started = time.perf_counter()
    left = MissingUnits.of(run_directory, tokens_per_row=100)
    assert left.num_units == num_left
    assert len(list(left)) == num_left
    figures |= {"resume s": time.perf_counter() - started, "MB resumed": _peak_mb()}
    ray.shutdown()
    return figures


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
