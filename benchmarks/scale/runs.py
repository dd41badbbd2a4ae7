"""Runs to measure with: made-up prompts, a plan over them, and a Ray of their own."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ray

from actors.units.feed import UnitFeed
from pipeline.inputs.files import list_files
from pipeline.inputs.options import InputOptions, resolve_options
from pipeline.inputs.units import plan_units
from pipeline.run.commit import Receipt
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.missing import MissingUnits
from pipeline.streaming.pool import ActorPool
from pipeline.streaming.stream import stream_units

_PROGRESS_TIMEOUT_S = 600.0
_OBJECT_STORE_BYTES = 200_000_000
_ROWS_PER_WRITE = 100_000


def start_own_ray(num_cpus: int = 2) -> None:
    """Start a small Ray for this process; `ray.shutdown` ends it."""
    ray.init(num_cpus=num_cpus, include_dashboard=False, log_to_driver=False, object_store_memory=_OBJECT_STORE_BYTES)


def plan_run(prompts: Path, run: Path, rows_per_unit: int) -> RunDirectory:
    """Return the directory of a new run over a file of prompts."""
    files = list_files(str(prompts))
    units = plan_units(files, resolve_options(files, InputOptions()), rows_per_unit)
    return RunDirectory.create(str(run), {"identity": {}, "carried": {}}, units)


def missing_units(run_directory: RunDirectory) -> MissingUnits:
    """Return the units of a run that are not committed."""
    return MissingUnits.of(run_directory, tokens_per_row=100)


def stream(
    missing: MissingUnits, ledger: Any, worker: type, arguments: Mapping[str, Any], pool: ActorPool
) -> Iterator[Receipt]:
    """Return an iterator of receipts, one for each unit as the workers commit it."""
    feed = UnitFeed(missing, ledger, backups=False)
    return stream_units(feed, missing.num_units, worker, {**arguments, "ledger": ledger}, pool, _PROGRESS_TIMEOUT_S)


def write_prompts(path: Path, count: int) -> None:
    """Write a JSONL file of `count` prompts."""
    with path.open("w") as file:
        for first in range(0, count, _ROWS_PER_WRITE):
            rows = range(first, min(count, first + _ROWS_PER_WRITE))
            file.write("".join(f'{{"prompt": "Say something about the number {row}."}}\n' for row in rows))
