"""The work of `jobs.retry`: the failed rows of a corpus are run again, and only those."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from math import ceil

from rich.console import Console
from rich.table import Table
from rich.text import Text

from actors.units.unit_rows import FailedRows
from jobs.config.run import RetryConfig
from jobs.driver.execution import execute
from jobs.driver.outcome import conclude, log_run_started, run_command, stopped
from jobs.driver.plan import Plan, worker_spec
from jobs.driver.stopping import Exit
from pipeline.counts import Counts
from pipeline.run.dead_letters import DeadLetters, FailedUnits, Wanted, count_still_failing, find_dead_letters, shown
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.lease import Lease, hold_lease


def retry(config: RetryConfig) -> Exit:
    """Retry, and return the exit code, which means what it does for jobs.generate."""
    return run_command(config, _begin)


def _begin(config: RetryConfig, plan: Plan) -> Callable[[], Exit]:
    run_directory, wanted = plan.run_directory, Wanted(config.stage, config.error_type)
    if run_directory is None:
        raise ValueError(f"{config.output.path}: no run here; python -m jobs.generate makes one")
    if config.dry_run:
        print_dead_letters(find_dead_letters(run_directory, wanted))
        return lambda: Exit.COMPLETE
    return lambda: _run(plan, run_directory, wanted)


def _run(plan: Plan, run_directory: RunDirectory, wanted: Wanted) -> Exit:
    with hold_lease(run_directory, plan.config.run.lease_timeout_s) as lease:
        letters = find_dead_letters(run_directory, wanted)
        if not letters.num_wanted:
            why = "none of the failed rows is asked for" if letters.num_rows else "no row failed"
            print(f"Nothing to try again: {why}.")
            if letters.num_rows:
                print_dead_letters(letters)
            if run_directory.is_success():
                return Exit.COMPLETE
        return _run_alone(plan, run_directory, wanted, letters, lease)


def _run_alone(plan: Plan, run_directory: RunDirectory, wanted: Wanted, letters: DeadLetters, lease: Lease) -> Exit:
    """Try the wanted rows again, as the only driver, and verify the whole."""
    started, tried, num_done = time.monotonic(), Counts(), 0
    run_directory.unmark_success()
    log_run_started(run_directory, len(letters.num_wanted))
    units = FailedUnits(run_directory.location.name, letters.num_wanted)
    if units.num_units and "WorkerDied" not in letters.wanted_types:  # beside a row that kills, units share its deaths
        # Enough units at once in an actor that their few failed rows fill the engine's slots.
        num_at_once = ceil(
            plan.settings.engine.num_slots * units.num_units / (units.num_rows * plan.settings.sampling.n)
        )
        plan = replace(plan, pool=replace(plan.pool, units_in_flight=max(plan.pool.units_in_flight, num_at_once)))
    rows = FailedRows(plan.input_options, plan.carried, wanted)
    spec = replace(worker_spec(plan, run_directory), units=rows)
    for receipt in execute(units, spec, plan, lease=lease, backups=False):
        tried += receipt.counts
        num_done += 1
    if num_done < units.num_units:
        return stopped(
            units.num_units - num_done,
            f" ({tried.num_rows} of {units.num_rows} rows tried, {tried.num_errors} of them failed again); the same "
            "command goes on with what is left in errors/",
        )
    if units.num_units:
        # Not from the receipts: a worker that died after its commit has sent none.
        num_failing = count_still_failing(run_directory, letters)
        print(f"retried: {units.num_rows} rows; now succeed: {units.num_rows - num_failing}; still fail: {num_failing}")
    if num_missing := sum(1 for _ in run_directory.missing_units()):
        print(
            f"{num_missing} units of the run were never finished: python -m jobs.generate goes on with them",
            file=sys.stderr,
        )
        return Exit.INCOMPLETE
    return conclude(run_directory, plan.config, tried, started)


def print_dead_letters(letters: DeadLetters) -> None:
    """Print what failed, by stage and error type, and how much of it would be tried again."""
    table = Table(title="Failed rows", title_justify="left")
    for heading in ("stage", "error type", "rows", "such as"):
        table.add_column(heading, justify="right" if heading == "rows" else "left", overflow="fold")
    for kind, num_rows in letters.num_rows.most_common():
        table.add_row(*(Text(cell) for cell in (*kind, f"{num_rows:,}", shown(letters.examples[kind]))))
    console = Console()
    if letters.num_rows:
        console.print(table)
    console.print(
        f"{letters.num_rows.total():,} rows failed; {letters.num_wanted.total():,} of them, in "
        f"{len(letters.num_wanted):,} units, would be tried again"
    )
