"""`python -m jobs.generate --config FILE`: generate a corpus, or what is missing of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence

from rich.console import Console

from actors.generator import Generator
from jobs.cluster import pick_device, start_ray
from jobs.config import RunConfig, load_config
from jobs.driving import ListedUnits, drive
from jobs.ending import Exit, bad_configuration, conclude, exit_of, interrupted, refuse_too_many_errors
from jobs.plan import Plan, create_run, make_plan, worker_arguments
from jobs.summary import print_summary
from pipeline.check import check_run
from pipeline.counts import Counts
from pipeline.dataset import ActorPool
from pipeline.lease import Lease, hold_lease
from pipeline.quarantine import quarantine
from pipeline.run_directory import RunDirectory
from pipeline.units import WorkUnit

_MIN_ROWS_TO_STOP_EARLY = 100


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
        return bad_configuration(error)
    except KeyboardInterrupt:
        return interrupted()
    return exit_of(lambda: _run(plan, config, pool, run_directory))


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
            refuse_too_many_errors(run_directory, new, config)
    if num_done < len(missing):
        print(
            f"stopped with {len(missing) - num_done} units to go; the same command goes on from what is committed",
            file=sys.stderr,
        )
        return Exit.INCOMPLETE
    return conclude(run_directory, config, new.num_output_tokens, time.monotonic() - started)


def _generate(
    plan: Plan, config: RunConfig, pool: ActorPool, run_directory: RunDirectory, missing: list[WorkUnit]
) -> Iterator[Counts]:
    """The counts of each unit as it is committed."""
    if not missing:
        return
    start_ray(config)
    most_tokens = plan.settings.sampling.n * plan.settings.sampling.max_tokens
    missing = sorted(missing, key=lambda unit: unit.most_tokens(most_tokens), reverse=True)
    arguments = worker_arguments(plan, config, run_directory)
    for receipt in drive(ListedUnits(missing), Generator, arguments, pool, config):
        yield receipt.counts


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
