"""Runs to measure with: made-up prompts, a plan over them, and a Ray of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray

from pipeline.inputs.files import list_files
from pipeline.inputs.options import InputOptions
from pipeline.inputs.units import plan_units
from pipeline.run.directory import RunDirectory
from pipeline.run.missing import MissingUnits

RUN: dict[str, Any] = {"identity": {}, "carried": {}}
PROGRESS_TIMEOUT_S = 600.0
_OBJECT_STORE_BYTES = 200_000_000
_ROWS_PER_WRITE = 100_000


def start_own_ray() -> None:
    """Start a small Ray for this process; `ray.shutdown` ends it."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=_OBJECT_STORE_BYTES)


def new_run(folder: Path, num_units: int, rows_per_unit: int) -> MissingUnits:
    """Return the units of a new run in this folder, which is made."""
    folder.mkdir()
    write_prompts(folder / "prompts.jsonl", num_units * rows_per_unit)
    files = list_files(str(folder / "prompts.jsonl"))
    units = plan_units(files, InputOptions(format="jsonl"), rows_per_unit)
    run_directory = RunDirectory.create(str(folder / "run"), RUN, units)
    return MissingUnits.of(run_directory, tokens_per_row=100)


def write_prompts(path: Path, count: int) -> None:
    """Write a JSONL file of `count` prompts."""
    with path.open("w") as file:
        for first in range(0, count, _ROWS_PER_WRITE):
            rows = range(first, min(count, first + _ROWS_PER_WRITE))
            file.write("".join(f'{{"prompt": "Say something about the number {row}."}}\n' for row in rows))
