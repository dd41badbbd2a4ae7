"""`python -m jobs.generate --config FILE`: generate a corpus, or what is missing of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from enum import IntEnum

import ray
from rich.console import Console

from actors.generator import Generator
from actors.ledger import start_ledger
from jobs.cluster import pick_device, start_ray
from jobs.config import RunConfig, load_config
from jobs.plan import Plan, create_run, make_plan
from jobs.progress import Progress
from jobs.stopping import GracefulStop
from jobs.summary import make_report, print_summary
from pipeline.check import CheckReport, check_run
from pipeline.counts import Counts
from pipeline.dataset import ActorPool, NoProgress, UnitError, stream_units
from pipeline.lease import Lease, LeaseHeld, LeaseLost, hold_lease
from pipeline.quarantine import quarantine
from pipeline.run_directory import RunDirectory
from pipeline.units import WorkUnit

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
    except (UnitError, NoProgress, ValueError, OSError, ray.exceptions.RayError) as error:
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
    missing = list(run_directory.missing_units())
    for counts in _generate(plan, config, pool, run_directory, missing):
        lease.refuse_if_lost()
        new += counts
        num_done += 1
        if new.num_rows >= _MIN_ROWS_TO_STOP_EARLY:
            _refuse_too_many_errors(run_directory, new, config)
    if num_done < len(missing):
        print(
            f"stopped with {len(missing) - num_done} units to go; the same command goes on from what is committed",
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
    plan: Plan, config: RunConfig, pool: ActorPool, run_directory: RunDirectory, missing: list[WorkUnit]
) -> Iterator[Counts]:
    """The counts of each unit as it is committed."""
    if not missing:
        return
    start_ray(config)
    ledger = start_ledger()
    worker_arguments = {
        "settings": plan.settings,
        "run_path": run_directory.location.name,
        "input_options": plan.input_options,
        "carried": plan.carried,
        "ledger": ledger,
        "hang_timeout_s": config.run.hang_timeout_s,
    }
    num_rows = sum(unit.num_rows for unit in missing)
    stop = GracefulStop(lambda: ray.get(ledger.stop.remote()), config.run.grace_period_s)
    with stop, Progress(len(missing), num_rows, config.run.progress) as progress:
        most_tokens = plan.settings.sampling.n * plan.settings.sampling.max_tokens
        missing = sorted(missing, key=lambda unit: unit.most_tokens(most_tokens), reverse=True)
        receipts = stream_units(missing, Generator, worker_arguments, pool, config.run.no_progress_timeout_s)
        for receipt in receipts:
            progress.add(receipt.counts)
            yield receipt.counts
    repeated = ray.get(ledger.summary.remote())
    if any(repeated.values()):
        print(_describe_repeats(repeated), file=sys.stderr)


def _describe_repeats(repeated: dict[str, int]) -> str:
    return (
        f"{repeated['num_deaths']} worker processes died over units, {repeated['num_repeated_units']} attempts were "
        f"repeated, {repeated['num_condemned_rows']} rows were given up because they kill their process"
    )


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
    if isinstance(error, NoProgress):
        return (
            "no unit was committed for run.no_progress_timeout_s: a process is frozen, the cluster had no room for an "
            "actor, or a unit takes longer (a smaller run.rows_per_unit, or a longer time-out)"
        )
    if isinstance(error, UnitError | ValueError):
        return str(error)
    if isinstance(error, ray.exceptions.ActorDiedError | ray.exceptions.ActorUnavailableError):
        return f"actors died again and again at one unit ({type(error).__name__}); out of memory, or a row kills them"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def print_plan(plan: Plan, config: RunConfig) -> None:
    """Print what the run would do."""
    console, path = Console(), config.output.path
    if plan.run_directory is None:
        units = list(plan.new_units(config.run.rows_per_unit))
        missing = units
        console.print(f"New run in {path}")
    else:
        units = list(plan.run_directory.units())
        missing = list(plan.run_directory.missing_units())
        console.print(f"Run in {path}, {len(units) - len(missing)} of {len(units)} units committed")
    models, engine, num_rows = plan.settings.models, plan.settings.engine, sum(unit.num_rows for unit in units)
    largest = max((unit.num_rows for unit in units), default=0)
    most = sum(unit.num_rows for unit in missing) * plan.settings.sampling.n * plan.settings.sampling.max_tokens
    drafter = engine.pick_drafter(models.draft)
    console.print(f"  input:   {len(plan.files)} files ({plan.input_options.format}), {num_rows:,} rows")
    console.print(f"  target:  {models.target} ({models.device}, {models.dtype})")
    console.print(f"  drafter: {drafter}{f' {models.draft}' if drafter == 'model' else ''}, {engine.verification}")
    console.print(f"  units:   {len(units):,} of at most {largest:,} rows; {len(missing):,} missing")
    console.print(f"  prompts: about {sum(unit.estimated_tokens for unit in missing):,} tokens to read (bytes / 4)")
    console.print(f"  output:  at most {most:,} tokens (rows x n x max_tokens)")


if __name__ == "__main__":
    sys.exit(main())
