"""What a plan costs: time and memory of the driver, from listing the input to finding most of it committed."""

import resource
import time
from pathlib import Path

import ray

from actors.units.ledgers import start_ledger
from benchmarks.scale.runs import missing_units, plan_run, start_own_ray, stream, write_prompts
from benchmarks.scale.simulated import EmptyWorker
from pipeline.streaming.pool import ActorPool


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
    run_directory = plan_run(source, output, rows_per_unit)
    missing = missing_units(run_directory)
    figures |= {"plan s": time.perf_counter() - started, "MB planned": _peak_mb()}
    ledger = start_ledger(units_in_flight=8, max_waiting=64)
    receipts = stream(missing, ledger, EmptyWorker, {}, ActorPool(num_cpus=0.5, units_in_flight=8))
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
    speed = num_done / (time.perf_counter() - first)
    figures |= {"done": float(num_done), "units/s": speed, "MB at the end": _peak_mb()}
    num_left = min(10, num_units)
    for unit_id in range(num_units - num_left):  # as if they had been committed: what a second command finds
        (output / f"data/part-{unit_id:09d}.parquet").touch()
    started = time.perf_counter()
    left = missing_units(run_directory)
    assert left.num_units == num_left
    assert len(list(left)) == num_left
    figures |= {"resume s": time.perf_counter() - started, "MB resumed": _peak_mb()}
    ray.shutdown()
    return figures


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
