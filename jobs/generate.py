"""`python -m jobs.generate --config FILE`: generate a corpus, or what is missing of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from enum import IntEnum

import ray
from rich.console import Console

from actors.generator import Generator
from actors.unit_worker import describe
from jobs.cluster import pick_device, start_ray
from jobs.config import RunConfig, load_config
from jobs.driving import drive
from jobs.plan import Plan, create_run, make_plan
from jobs.summary import make_report, print_summary
from pipeline.check import CheckReport, check_run
from pipeline.counts import Counts
from pipeline.dataset import ActorPool, UnitError
from pipeline.id_set import IdSet
from pipeline.lease import Lease, LeaseHeld, LeaseLost, hold_lease
from pipeline.missing import MissingUnits
from pipeline.quarantine import quarantine
from pipeline.run_directory import RunDirectory

_MIN_ROWS_TO_STOP_EARLY = 100


class Exit(IntEnum):
    """What the exit code says."""

    COMPLETE = 0
    FAILED = 1  # what is committed stays
    BAD_CONFIGURATION = 2
    INCOMPLETE = 3  # stopped or interrupted; the same command goes on


class TooManyErrors(Exception):
    """More rows failed than run.max_error_rate allows."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    try:
        config = load_config(sys.argv[1:] if arguments is None else arguments, prog="python -m jobs.generate")
        device, pool = pick_device(config)
        plan = make_plan(config, device)
        if config.dry_run:
            print_plan(plan, config)
            return Exit.COMPLETE
        run_directory = create_run(plan, config)
    except (ValueError, OSError) as error:
        text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        print(f"error: {text}", file=sys.stderr)
        return Exit.BAD_CONFIGURATION
    except KeyboardInterrupt:
        return _interrupted()
    try:
        return _run(plan, config, pool, run_directory)
    except KeyboardInterrupt:
        return _interrupted()
    except (TooManyErrors, LeaseHeld, LeaseLost) as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.FAILED
    except (UnitError, ValueError, OSError, ray.exceptions.RayError) as error:
        print(f"error: {_explain(error)}", file=sys.stderr)
        print("what is committed stays; mend the cause and run the same command again", file=sys.stderr)
        return Exit.FAILED


def _run(plan: Plan, config: RunConfig, pool: ActorPool, run_directory: RunDirectory) -> Exit:
    if run_directory.is_success() and not any(run_directory.missing_units()):
        check = check_run(run_directory)
        if check.is_complete:
            print(f"Nothing left to do: {run_directory.location.name} is complete.")
            print_summary(run_directory, check)
            return Exit.COMPLETE
    with hold_lease(run_directory, config.run.lease_timeout_s) as lease:
        return _run_alone(plan, config, pool, run_directory, lease)


def _run_alone(plan: Plan, config: RunConfig, pool: ActorPool, run_directory: RunDirectory, lease: Lease) -> Exit:
    """Generate what is missing, as the only driver, and verify the whole."""
    started = time.monotonic()
    run_directory.unmark_success()
    for name in quarantine(run_directory, run_directory.stunted_parts()):
        print(f"{name}: was too short to be a part, and was moved there; its unit is done again")
    new = Counts()
    num_done = 0
    missing = MissingUnits.of(run_directory, plan.tokens_per_row)
    for counts in _generate(plan, config, pool, run_directory, missing):
        lease.refuse_if_lost()
        new += counts
        num_done += 1
        if new.num_rows >= _MIN_ROWS_TO_STOP_EARLY:
            _refuse_too_many_errors(run_directory, new, config)
    if num_done < missing.num_units:
        print(
            f"stopped with {missing.num_units - num_done} units to go; the same command goes on from what is committed",
            file=sys.stderr,
        )
        return Exit.INCOMPLETE
    seconds = time.monotonic() - started
    check = check_run(run_directory)
    run_directory.write_report(make_report(run_directory, check, seconds))
    print_summary(run_directory, check, new.num_output_tokens, seconds)
    if not check.is_complete:
        _print_problems(check)
        return Exit.FAILED
    _refuse_too_many_errors(run_directory, check.counts, config)
    run_directory.mark_success()
    if check.counts.num_errors:
        where = run_directory.location.child("errors").name
        print(f"{check.counts.num_errors} rows failed and are in {where}, each with its stage and message")
    return Exit.COMPLETE


def _generate(
    plan: Plan, config: RunConfig, pool: ActorPool, run_directory: RunDirectory, missing: MissingUnits
) -> Iterator[Counts]:
    """The counts of each unit as it is committed."""
    if not missing.num_units:
        return
    start_ray(config)
    worker_arguments = {
        "settings": plan.settings,
        "run_path": run_directory.location.name,
        "input_options": plan.input_options,
        "carried": plan.carried,
        "hang_timeout_s": config.run.hang_timeout_s,
    }
    for receipt in drive(missing, Generator, worker_arguments, pool, config):
        yield receipt.counts


def _refuse_too_many_errors(run_directory: RunDirectory, counts: Counts, config: RunConfig) -> None:
    if counts.num_errors > config.run.max_error_rate * counts.num_rows:
        raise TooManyErrors(
            f"{counts.num_errors} of {counts.num_rows} rows failed, more than run.max_error_rate "
            f"{config.run.max_error_rate}; {run_directory.location.child('errors').name} says why. Failed rows are "
            "not tried again in this run: mend the input or the configuration and use a new output directory, "
            "or accept them with a higher run.max_error_rate"
        )


def _print_problems(check: CheckReport) -> None:
    for problem in check.problems:
        print(f"problem: {problem}", file=sys.stderr)
    print(
        "the run is not complete; `python -m jobs.verify OUTPUT --repair` moves damaged files away, "
        "and the same command as now then redoes their units",
        file=sys.stderr,
    )


def _interrupted() -> Exit:
    print("\ninterrupted; the same command goes on from what is committed", file=sys.stderr)
    return Exit.INCOMPLETE


def _explain(error: Exception) -> str:
    if isinstance(error, ray.exceptions.RayTaskError):
        return describe(error)
    if isinstance(error, UnitError | ValueError):
        return str(error)
    if isinstance(error, ray.exceptions.ActorDiedError | ray.exceptions.ActorUnavailableError):
        return f"actors died again and again at one unit ({type(error).__name__}); out of memory, or a row kills them"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def print_plan(plan: Plan, config: RunConfig) -> None:
    """Print what the run would do."""
    console, path = Console(), config.output.path
    if plan.run_directory is None:
        units, committed = plan.new_units(config.run.rows_per_unit), IdSet()
        console.print(f"New run in {path}")
    else:
        units, committed = plan.run_directory.units(), plan.run_directory.committed_unit_ids()
        console.print(f"Run in {path}, {len(committed)} of {plan.run_directory.manifest.num_units} units committed")
    num_units = num_rows = largest = num_missing = missing_rows = missing_tokens = 0
    for unit in units:
        num_units, num_rows, largest = num_units + 1, num_rows + unit.num_rows, max(largest, unit.num_rows)
        if unit.unit_id not in committed:
            num_missing, missing_rows = num_missing + 1, missing_rows + unit.num_rows
            missing_tokens += unit.estimated_tokens
    models, engine = plan.settings.models, plan.settings.engine
    drafter = engine.pick_drafter(models.draft)
    console.print(f"  input:   {len(plan.files)} files ({plan.input_options.format}), {num_rows:,} rows")
    console.print(f"  target:  {models.target} ({models.device}, {models.dtype})")
    console.print(f"  drafter: {drafter}{f' {models.draft}' if drafter == 'model' else ''}, {engine.verification}")
    console.print(f"  units:   {num_units:,} of at most {largest:,} rows; {num_missing:,} missing")
    console.print(f"  prompts: about {missing_tokens:,} tokens to read (bytes / 4)")
    console.print(f"  output:  at most {missing_rows * plan.tokens_per_row:,} tokens (rows x n x max_tokens)")


if __name__ == "__main__":
    sys.exit(main())
