"""`python -m jobs.scale`: what planning and handing out a large run costs, and how well actors scale. No GPU.

python -m jobs.scale plan --units 1000,10000,100000 --rows-per-unit 100
python -m jobs.scale actors --actors 1,4,16,64
python -m jobs.scale engines --actors 1,2          the bundled pair instead of a simulated engine
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray

from actors.feed import Feed
from actors.ledger import start_ledger
from actors.simulated import EmptyWorker, SimulatedWorker
from pipeline.counts import Counts
from pipeline.dataset import ActorPool, stream_units
from pipeline.files import list_files
from pipeline.input_options import InputOptions, resolve_options
from pipeline.missing import MissingUnits
from pipeline.receipt import Receipt
from pipeline.run_directory import RunDirectory
from pipeline.units import plan_units

_ROWS_PER_WRITE = 100_000
_PROGRESS_TIMEOUT_S = 600.0
_OBJECT_STORE_BYTES = 200_000_000
_RUN: dict[str, Any] = {"identity": {}, "carried": {}}


def main(arguments: Sequence[str] | None = None) -> int:
    """0."""
    given = _parse(arguments)
    if given.command == "measure-plan":
        print(json.dumps(measure_plan(given.units[0], given.rows_per_unit, given.seconds, given.folder)))
        return 0
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        if given.command == "plan":
            _print_plans(given, folder)
        else:
            _print_scaling(given, Path(folder))
    return 0


def measure_plan(num_units: int, rows_per_unit: int, seconds: float, folder: str) -> dict[str, float]:
    """What a plan over so many units of a JSONL file costs; units are handed out to a worker that does nothing.

    To be called in a process of its own: it reports the peak of this process's memory (MB). Handing out ends after
    `seconds`, or with the last unit.
    """
    source, output = Path(folder) / f"{num_units}.jsonl", Path(folder) / f"{num_units}"
    _write_prompts(source, num_units * rows_per_unit)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=_OBJECT_STORE_BYTES)
    figures = {"units": float(num_units), "rows": float(num_units * rows_per_unit), "MB before": _peak_mb()}
    started = time.perf_counter()
    files = list_files(str(source))
    options = resolve_options(files, InputOptions())
    run_directory = RunDirectory.create(str(output), _RUN, plan_units(files, options, rows_per_unit))
    missing = MissingUnits.of(run_directory, tokens_per_row=100)
    figures |= {"plan s": time.perf_counter() - started, "MB planned": _peak_mb()}
    ledger = start_ledger(units_in_flight=8, most_waiting=64)
    pool = ActorPool(num_cpus=0.5, units_in_flight=8)
    receipts = stream_units(
        Feed(missing, ledger, backups=False), num_units, EmptyWorker, {"ledger": ledger}, pool, _PROGRESS_TIMEOUT_S
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
    for unit_id in range(num_units - 10):  # as if they had been committed: what a second command finds
        (output / f"data/part-{unit_id:09d}.parquet").touch()
    started = time.perf_counter()
    left = MissingUnits.of(run_directory, tokens_per_row=100)
    assert left.num_units == 10
    assert len(list(left)) == 10
    figures |= {"resume s": time.perf_counter() - started, "MB resumed": _peak_mb()}
    ray.shutdown()
    return figures


def begin_together(worker: type, num_actors: int) -> type:
    """The worker, beginning nothing before so many processes are ready: their start is not what is measured."""

    class Together(worker):  # type: ignore[misc]
        async def __call__(self, batch: pa.Table) -> pa.Table:
            while await self._ledger.num_joined.remote() < num_actors:
                await asyncio.sleep(0.2)
            receipts: pa.Table = await super().__call__(batch)
            return receipts

    return Together


def measure_actors(
    missing: MissingUnits, worker: type, worker_arguments: Mapping[str, Any], pool: ActorPool
) -> tuple[float, Counts]:
    """Seconds from the moment when all actors are ready to the last receipt, and the counts."""
    ledger = start_ledger(pool.units_in_flight, 2 * pool.max_actors * pool.units_in_flight + 16)
    ready_at: list[float] = []

    def watch() -> None:
        while ray.get(ledger.num_joined.remote()) < pool.max_actors:
            time.sleep(0.05)
        ready_at.append(time.perf_counter())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    receipts: Iterator[Receipt] = stream_units(
        Feed(missing, ledger, backups=False),
        missing.num_units,
        begin_together(worker, pool.max_actors),
        {**worker_arguments, "ledger": ledger},
        pool,
        _PROGRESS_TIMEOUT_S,
    )
    counts, ended = Counts(), 0.0
    for receipt in receipts:
        counts += receipt.counts
        ended = time.perf_counter()
    watcher.join()
    return ended - ready_at[0], counts


def _print_plans(given: argparse.Namespace, folder: str) -> None:
    for num_units in given.units:
        command = [sys.executable, "-m", "jobs.scale", "measure-plan", f"--units={num_units}", f"--folder={folder}"]
        command += [f"--rows-per-unit={given.rows_per_unit}", f"--seconds={given.seconds}"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        print("  ".join(f"{name} {value:,.1f}".replace(".0 ", " ") for name, value in figures.items()), flush=True)


def _print_scaling(given: argparse.Namespace, folder: Path) -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=_OBJECT_STORE_BYTES)
    measure = _simulate if given.command == "actors" else _run_engines
    alone = 0.0
    for num_actors in given.actors or ([1, 4, 16, 64] if given.command == "actors" else [1, 2]):
        ideal, seconds, num_units, what = measure(num_actors, given, folder / str(num_actors))
        alone = alone or seconds * num_actors
        ideal = ideal or alone / num_actors
        lost = (seconds - ideal) * num_actors / num_units
        print(
            f"{num_actors} actors: {num_units} units in {seconds:.2f} s, ideal {ideal:.2f} s, efficiency "
            f"{ideal / seconds:.3f}, {1000 * lost:.0f} ms of an actor lost a unit{what}",
            flush=True,
        )
    ray.shutdown()


def _simulate(num_actors: int, given: argparse.Namespace, folder: Path) -> tuple[float, float, int, str]:
    """Ideal seconds, measured seconds, units and a remark, with engines that sleep."""
    num_units, num_slots = num_actors * given.units_per_actor, given.rows_per_unit
    missing = _new_run(folder, num_units, given.rows_per_unit)
    arguments = {
        "run_path": missing.run_path,
        "input_options": InputOptions(format="jsonl"),
        "carried": {},
        "num_slots": num_slots,
        "round_s": given.round_s,
        "rounds_per_row": given.rounds_per_row,
    }
    pool = ActorPool(min_actors=num_actors, max_actors=num_actors, num_cpus=1 / 64)
    seconds, counts = measure_actors(missing, SimulatedWorker, arguments, pool)
    assert counts.num_rows == missing.num_rows
    return given.units_per_actor * given.rounds_per_row * given.round_s, seconds, num_units, ""


def _run_engines(num_actors: int, given: argparse.Namespace, folder: Path) -> tuple[float, float, int, str]:
    """The same with the bundled pair; there is no ideal but that of one actor alone."""
    # Here: planning needs neither torch nor a configuration.
    from actors.generator import Generator
    from jobs.config import load_config
    from jobs.plan import create_run, make_plan, worker_arguments

    folder.mkdir()
    pair = Path(__file__).parent.parent / "examples" / "tiny_pair"
    prompts = (pair.parent / "prompts.jsonl").read_text()
    (folder / "prompts.jsonl").write_text(prompts * 4)
    flags = [f"--input.path={folder / 'prompts.jsonl'}", f"--output.path={folder / 'run'}", "--run.rows_per_unit=25"]
    flags += [f"--models.target={pair / 'target'}", f"--models.draft={pair / 'draft'}", "--engine.draft_length=fixed"]
    flags += ["--models.device=cpu", "--sampling.max_tokens=100", "--engine.num_speculative_tokens=4"]
    config = load_config([*flags, *(f"--actors.{size}_actors={num_actors}" for size in ("max", "min"))], "jobs.scale")
    plan = make_plan(config, "cpu")
    run_directory = create_run(plan, config)
    arguments = worker_arguments(plan, config, run_directory)
    missing = MissingUnits.of(run_directory, plan.tokens_per_row)
    seconds, counts = measure_actors(missing, Generator, arguments, config.actor_pool())
    return 0.0, seconds, missing.num_units, f", {counts.num_output_tokens / seconds:,.0f} tokens/s"


def _new_run(folder: Path, num_units: int, rows_per_unit: int) -> MissingUnits:
    folder.mkdir()
    _write_prompts(folder / "prompts.jsonl", num_units * rows_per_unit)
    files = list_files(str(folder / "prompts.jsonl"))
    units = plan_units(files, InputOptions(format="jsonl"), rows_per_unit)
    run_directory = RunDirectory.create(str(folder / "run"), _RUN, units)
    return MissingUnits.of(run_directory, tokens_per_row=100)


def _write_prompts(path: Path, count: int) -> None:
    with path.open("w") as file:
        for first in range(0, count, _ROWS_PER_WRITE):
            rows = range(first, min(count, first + _ROWS_PER_WRITE))
            file.write("".join(f'{{"prompt": "Say something about the number {row}."}}\n' for row in rows))


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m jobs.scale", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("command", choices=["plan", "actors", "engines", "measure-plan"])
    parser.add_argument("--units", type=_numbers, default=[1000, 10_000, 100_000], help="plan: numbers of units")
    parser.add_argument("--rows-per-unit", type=int, default=16, help="prompts in a unit; also slots, for actors")
    parser.add_argument("--seconds", type=float, default=60.0, help="plan: how long to hand units out")
    parser.add_argument("--actors", type=_numbers, help="numbers of actors: 1,4,16,64, for engines 1,2 unless given")
    parser.add_argument("--units-per-actor", type=int, default=6, help="actors: units for each")
    parser.add_argument("--round-s", type=float, default=0.25, help="actors: seconds a round takes")
    parser.add_argument("--rounds-per-row", type=int, default=40, help="actors: rounds a row takes")
    parser.add_argument("--folder", default=None, help="where to put inputs and runs; they are deleted at the end")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
