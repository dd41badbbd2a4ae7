"""`python -m jobs.generate --config FILE`: generate a corpus, or what is missing of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import ray
from rich.console import Console

from actors.generator import Generator
from actors.resources import settle_device
from jobs.config import RunConfig, load_config
from jobs.plan import Plan, create_run, make_plan
from jobs.progress import Progress
from jobs.summary import make_report, print_summary
from pipeline.check import check_run
from pipeline.counts import Counts
from pipeline.dataset import stream_units
from pipeline.run_directory import RunDirectory
from pipeline.units import WorkUnit

_MIN_ROWS_FOR_ERROR_RATE = 100


class Exit(IntEnum):
    """What the exit code says."""

    COMPLETE = 0
    FAILED = 1  # what is committed stays; the same command goes on from there
    BAD_CONFIGURATION = 2
    INCOMPLETE = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    try:
        config = load_config(sys.argv[1:] if arguments is None else arguments, prog="python -m jobs.generate")
        plan = make_plan(config)
        if config.dry_run:
            print_plan(plan, config)
            return Exit.COMPLETE
        run_directory = create_run(plan, config)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.BAD_CONFIGURATION
    missing = list(run_directory.missing_units())
    if not missing and run_directory.is_success():
        print(f"Nothing left to do: {run_directory.location.name} is complete.")
        print_summary(run_directory, check_run(run_directory))
        return Exit.COMPLETE
    try:
        return _run(plan, config, run_directory, missing)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from what is committed", file=sys.stderr)
        return Exit.INCOMPLETE


def _run(plan: Plan, config: RunConfig, run_directory: RunDirectory, missing: list[WorkUnit]) -> Exit:
    started = time.monotonic()
    new = Counts()
    if missing:
        try:
            for receipt_counts in _generate(plan, config, run_directory, missing):
                new += receipt_counts
                _stop_if_too_many_errors(new, config.run.max_error_rate)
        except (ray.exceptions.RayError, ValueError, RuntimeError, OSError) as error:
            print(f"error: {_cause(error)}", file=sys.stderr)
            print("what is committed stays; mend the cause and run the same command again", file=sys.stderr)
            return Exit.FAILED
    seconds = time.monotonic() - started
    check = check_run(run_directory)
    run_directory.write_report(make_report(run_directory, check, seconds))
    print_summary(run_directory, check, new.num_output_tokens, seconds)
    if not check.is_complete:
        for problem in check.problems:
            print(f"problem: {problem}", file=sys.stderr)
        return Exit.FAILED
    run_directory.mark_success()
    if check.counts.num_errors:
        where = run_directory.location.child("errors").name
        print(f"{check.counts.num_errors} rows failed and are in {where}, each with its stage and message")
    return Exit.COMPLETE


def _generate(plan: Plan, config: RunConfig, run_directory: RunDirectory, missing: list[WorkUnit]) -> Iterator[Counts]:
    """The counts of each unit as it is committed."""
    _start_ray(config)
    device, pool = settle_device(
        plan.settings.models.device, config.actor_pool(), ray.cluster_resources().get("GPU", 0.0)
    )
    worker_arguments = {
        "settings": plan.settings.on_device(device),
        "run_path": run_directory.location.name,
        "input_options": plan.input_options,
        "carried": plan.carried,
    }
    num_rows = sum(unit.num_rows for unit in missing)
    with Progress(len(missing), num_rows, config.run.progress) as progress:
        receipts = stream_units(missing, Generator, worker_arguments, pool, config.run.no_progress_timeout_s)
        for receipt in receipts:
            progress.add(receipt.counts)
            yield receipt.counts


def _start_ray(config: RunConfig) -> None:
    if ray.is_initialized():
        return
    # Both silence warnings of Ray 2.60 that a local run always prints and nobody can act on.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    address = config.run.ray_address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    with _without_stderr():
        ray.init(log_to_driver=False, logging_level="ERROR", **options)


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Drop what native code writes to stderr: Ray's notice about the log level above. Exceptions pass."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def _stop_if_too_many_errors(counts: Counts, max_error_rate: float) -> None:
    if counts.num_rows >= _MIN_ROWS_FOR_ERROR_RATE and counts.num_errors > max_error_rate * counts.num_rows:
        raise RuntimeError(
            f"{counts.num_errors} of {counts.num_rows} rows failed, more than run.max_error_rate {max_error_rate}; "
            "errors/ in the run directory says why"
        )


def _cause(error: BaseException) -> str:
    """The message of the first failure, without Ray's frames around it."""
    while True:
        inner = getattr(error, "cause", None) or error.__cause__
        if not isinstance(inner, BaseException):
            return f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        error = inner


def print_plan(plan: Plan, config: RunConfig) -> None:
    """Print what the run would do."""
    console = Console()
    if plan.run_directory is None:
        units = list(plan.new_units(config.run.rows_per_unit))
        missing = units
        console.print(f"New run in {config.output.path}")
    else:
        units = list(plan.run_directory.units())
        missing = list(plan.run_directory.missing_units())
        console.print(f"Run in {config.output.path}, {len(units) - len(missing)} of {len(units)} units committed")
    engine = plan.settings.engine
    console.print(
        f"  input:   {len(plan.files)} files ({plan.input_options.format}), {sum(u.num_rows for u in units):,} rows"
    )
    console.print(f"  target:  {plan.settings.models.target}")
    draft = plan.settings.models.draft
    console.print(f"  drafter: {engine.pick_drafter(draft)} {draft or ''}, {engine.verification}")
    console.print(f"  units:   {len(units):,} of at most {config.run.rows_per_unit:,} rows; {len(missing):,} missing")
    console.print(f"  prompts: about {sum(u.estimated_tokens for u in missing):,} tokens to read (bytes / 4)")
    most = sum(u.num_rows for u in missing) * plan.settings.sampling.n * plan.settings.sampling.max_tokens
    console.print(f"  output:  at most {most:,} tokens (rows x n x max_tokens)")


if __name__ == "__main__":
    sys.exit(main())
