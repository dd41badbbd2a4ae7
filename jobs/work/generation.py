"""The work of `dray generate` and `dray retry`: what is missing of a corpus is generated, or failed rows run again."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from actors.units.unit_rows import FailedRows
from jobs.config.run import GenerateConfig, RetryConfig
from jobs.driver.chosen import print_as_file, print_chosen
from jobs.driver.execution import execute
from jobs.driver.learning import learning, refuse_learning
from jobs.driver.outcome import (
    checked,
    conclude,
    log_run_started,
    refuse_inexact_parts,
    refuse_too_many_errors,
    run_command,
    stopped,
)
from jobs.driver.plan import Plan, create_run, worker_spec
from jobs.driver.progress import Progress
from jobs.driver.stopping import Exit
from jobs.driver.summary import print_ending, print_summary
from jobs.work.estimate import estimate, spread_units
from jobs.work.plan_text import print_plan, prompts_in_words
from jobs.work.tuning.decision import decided
from pipeline.counts import Counts
from pipeline.run.check import quarantine
from pipeline.run.dead_letters import (
    DeadLetters,
    FailedUnits,
    Wanted,
    count_still_failing,
    find_dead_letters,
    shown,
)
from pipeline.run.directory import RunDirectory, refuse_occupied
from pipeline.run.progress.lease import hold_lease
from pipeline.run.progress.missing import MissingUnits

_MIN_ROWS_TO_STOP_EARLY = 100


def generate(config: GenerateConfig) -> Exit:
    """Generate, and return the exit code."""
    return run_command(config, _begin, "what is committed stays" if config.estimate is None else "nothing was kept")


def _begin(config: GenerateConfig, plan: Plan) -> Callable[[], Exit]:
    if plan.run_directory is None:
        refuse_occupied(config.output.path)
    refuse_learning(config.learn, plan)
    if config.dry_run:
        print_plan(plan)
        print_chosen(plan.config)
        print_as_file(plan.config)
        return lambda: Exit.COMPLETE
    if config.estimate is not None:
        num_rows = config.estimate
        return lambda: estimate(config, decided(plan, spread_units(plan, num_rows), num_rows))
    print_chosen(plan.config)
    with Progress(config.run.progress, "dividing the input into units"):
        run_directory = create_run(plan)
    options = plan.input_options
    if plan.run_directory is None and options.prompts_are == "auto" and options.text_marks is not None:
        print(f"  {prompts_in_words(plan)}")
    return lambda: _run(plan, run_directory)


def _run(plan: Plan, run_directory: RunDirectory) -> Exit:
    """Generate what is missing, as the only driver, and verify the whole."""
    if run_directory.is_success() and not any(run_directory.missing_units()):
        check = checked(run_directory, plan.config)
        if check.is_complete:
            print(f"Nothing left to do: {run_directory.location.name} is complete.")
            print_summary(run_directory, check)
            refuse_inexact_parts(run_directory, check, plan.config)
            print_ending(run_directory, plan.config.run)
            return Exit.COMPLETE
    with ExitStack() as resources:
        with Progress(plan.config.run.progress, "looking for what is missing"):  # it may wait for another driver's end
            lease = resources.enter_context(hold_lease(run_directory, plan.config.run.lease_timeout_s))
            started, new, num_done = time.monotonic(), Counts(), 0
            run_directory.unmark_success()
            moved = quarantine(run_directory, run_directory.truncated_parts())
            missing = MissingUnits.of(run_directory, plan.tokens_per_row)
        if missing.num_units:
            plan = decided(plan, missing, missing.num_rows, run_directory)
        for name in moved:
            print(f"{name}: was too short to be a part, and was moved there; its unit is done again")
        before = run_directory.manifest.num_units - missing.num_units
        if plan.config.run.audit_fraction and before:
            what = (
                "1 unit was committed before and is" if before == 1 else f"{before} units were committed before and are"
            )
            print(f"note: {what} not audited (run.audit_fraction); dray audit takes a sample of all", file=sys.stderr)
        log_run_started(run_directory, missing.num_units)
        with learning(plan.config.learn, plan, run_directory) as lessons:
            for receipt in execute(missing, worker_spec(plan, run_directory), plan, lease=lease):
                lease.refuse_if_lost()
                new += receipt.counts
                num_done += 1
                lessons.committed(receipt.counts.num_rows)
                if new.num_rows >= _MIN_ROWS_TO_STOP_EARLY:
                    refuse_too_many_errors(run_directory, new, plan.config)
        if num_done < missing.num_units:
            return stopped(missing.num_units - num_done, "; the same command goes on from what is committed")
        return conclude(run_directory, plan.config, new, started)


def retry(config: RetryConfig) -> Exit:
    """Retry, and return the exit code, which means what it does for jobs.generate."""
    return run_command(config, _begin_retry)


def _begin_retry(config: RetryConfig, plan: Plan) -> Callable[[], Exit]:
    run_directory, wanted = plan.run_directory, Wanted(config.stage, config.error_type)
    if config.run.audit_fraction:
        print(
            "note: run.audit_fraction is for dray generate; rows that are tried again are not audited", file=sys.stderr
        )
    if run_directory is None:
        raise ValueError(f"{config.output.path}: no run here; dray generate makes one")
    if config.dry_run:
        print_dead_letters(find_dead_letters(run_directory, wanted))
        return lambda: Exit.COMPLETE
    return lambda: _retry_wanted(plan, run_directory, wanted)


def _retry_wanted(plan: Plan, run_directory: RunDirectory, wanted: Wanted) -> Exit:
    """Try the wanted rows again, as the only driver, and verify the whole."""
    with ExitStack() as resources:
        with Progress(plan.config.run.progress, "looking for failed rows"):
            lease = resources.enter_context(hold_lease(run_directory, plan.config.run.lease_timeout_s))
            letters = find_dead_letters(run_directory, wanted)
        if not letters.num_wanted:
            why = "none of the failed rows is asked for" if letters.num_rows else "no row failed"
            print(f"Nothing to try again: {why}.")
            if letters.num_rows:
                print_dead_letters(letters)
            if run_directory.is_success():
                return Exit.COMPLETE
        if letters.num_wanted:
            plan = decided(plan, run_directory.units(), run_directory.manifest.num_rows, run_directory)
        started, tried, num_done = time.monotonic(), Counts(), 0
        run_directory.unmark_success()
        log_run_started(run_directory, len(letters.num_wanted))
        units = FailedUnits(run_directory.location.name, letters.num_wanted)
        if "WorkerDied" in letters.wanted_types:  # beside a row that kills, many units would share its deaths
            plan = replace(plan, pool=replace(plan.pool, units_in_flight=plan.pool.num_units_at_once))
        rows = FailedRows(plan.input_options, plan.carried, wanted)
        spec = replace(worker_spec(plan, run_directory), units=rows)
        for receipt in execute(units, spec, plan, lease=lease, backups=False):
            lease.refuse_if_lost()
            tried += receipt.counts
            num_done += 1
        if num_done < units.num_units:
            return stopped(
                units.num_units - num_done,
                f" ({tried.num_rows} of {units.num_rows} rows tried, {tried.num_errors} of them failed again); the "
                "same command goes on with what is left in errors/",
            )
        if units.num_units:
            # Not from the receipts: a worker that died after its commit has sent none.
            failing = count_still_failing(run_directory, letters)
            print(f"retried: {units.num_rows} rows; now succeed: {units.num_rows - failing}; still fail: {failing}")
        if num_missing := sum(1 for _ in run_directory.missing_units()):
            print(
                f"{num_missing} units of the run were never finished: dray generate goes on with them",
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
