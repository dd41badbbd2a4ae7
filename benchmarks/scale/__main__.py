"""`python -m benchmarks.scale`: what a large run costs beside its engines, and how well actors scale.

python -m benchmarks.scale plan --units 1000,10000,100000 --rows-per-unit 100
python -m benchmarks.scale commands --units 20000,100000 --rows-per-unit 10 --delays-ms 30
python -m benchmarks.scale actors --actors 1,4,16,64
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import ray

from benchmarks.roofline.hardware import record
from benchmarks.scale.actors import Spread, simulate
from benchmarks.scale.commands import measure_commands
from benchmarks.scale.plan import measure_plan
from benchmarks.scale.runs import start_own_ray


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named measurement and return 0."""
    given = _parse(arguments)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        if given.command == "plan":
            _print_plans(given, folder)
        elif given.command == "commands":
            _print_costs(given, Path(folder))
        else:
            start_own_ray()
            print_spreads(_simulated(given, Path(folder)))
            ray.shutdown()
    return 0


def print_spreads(spreads: Iterable[Spread]) -> None:
    """Print a line for each as it comes."""
    for spread in spreads:
        lost = (spread.seconds - spread.ideal_seconds) * spread.num_actors / spread.num_units
        print(
            f"{spread.num_actors} actors: {spread.num_units} units in {spread.seconds:.2f} s, "
            f"ideal {spread.ideal_seconds:.2f} s, efficiency {spread.ideal_seconds / spread.seconds:.3f}, "
            f"{1000 * lost:.0f} ms of an actor lost a unit, "
            f"{1000 * spread.control_seconds / spread.num_units:.1f} ms of CPU a unit in driver and ledger",
            flush=True,
        )


def _print_plans(given: argparse.Namespace, folder: str) -> None:
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        for num_units in given.units:
            figures = processes.submit(measure_plan, num_units, given.rows_per_unit, given.seconds, folder).result()
            print("  ".join(f"{name} {value:,.1f}".replace(".0 ", " ") for name, value in figures.items()), flush=True)


def _print_costs(given: argparse.Namespace, folder: Path) -> None:
    costs = []
    for num_units in given.units:
        place = folder / str(num_units)
        place.mkdir()
        for cost in measure_commands(place, num_units, given.rows_per_unit, given.delays_ms):
            where = "on a disk" if cost.delay_ms is None else f"{cost.delay_ms:g} ms a request"
            print(
                f"{cost.command}, {num_units:,} parts, {cost.num_rows:,} rows, {where}: {cost.seconds:.1f} s, "
                f"{cost.cpu_seconds:.1f} s of CPU, {cost.megabytes:.0f} MB, {cost.load:.0f} processes beside it",
                flush=True,
            )
            costs.append(cost)
            record(given.json, costs=costs)


def _simulated(given: argparse.Namespace, folder: Path) -> Iterator[Spread]:
    for num_actors in given.actors:
        yield simulate(
            num_actors,
            folder / str(num_actors),
            units_per_actor=given.units_per_actor,
            rows_per_unit=given.rows_per_unit,
            round_s=given.round_s,
            rounds_per_row=given.rounds_per_row,
        )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["plan", "commands", "actors"])
    parser.add_argument(
        "--units", type=_numbers, default=[1000, 10_000, 100_000], help="plan, commands: numbers of units"
    )
    parser.add_argument("--rows-per-unit", type=int, default=16, help="prompts in a unit")
    parser.add_argument("--seconds", type=float, default=60.0, help="plan: how long to hand units out")
    parser.add_argument("--actors", type=_numbers, default=[1, 4, 16, 64], help="numbers of actors")
    parser.add_argument("--units-per-actor", type=int, default=6, help="actors: units for each")
    parser.add_argument("--round-s", type=float, default=0.25, help="actors: seconds a round takes")
    parser.add_argument("--rounds-per-row", type=int, default=40, help="actors: rounds a row takes")
    parser.add_argument(
        "--delays-ms", type=_numbers, default=[], help="commands: of requests to a store, besides a disk"
    )
    parser.add_argument("--json", type=Path, help="commands: a file for the figures")
    parser.add_argument("--folder", default=None, help="where to put inputs and runs; they are deleted at the end")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
