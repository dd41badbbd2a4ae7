"""The estimate of `dray generate --estimate N`: some rows are done for real, and say what all of them would take.

The rows are whole small units from all over the input. One engine does them in a run directory beside the output, which
is deleted afterwards. The interval is that of a cluster bootstrap over those units (Efron 1979): 95 %, percentiles.
"""

import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from secrets import token_hex

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from jobs.config.run import GenerateConfig
from jobs.driver.execution import execute
from jobs.driver.outcome import stopped
from jobs.driver.plan import Plan, create_run, worker_spec
from jobs.driver.progress import Progress, format_seconds
from jobs.driver.stopping import Exit
from jobs.report_page.numbers import format_rate
from pipeline.counts import Counts
from pipeline.inputs.units import WorkUnit, plan_units
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.lease import hold_lease
from pipeline.run.progress.missing import MissingUnits
from pipeline.run.unit_rows import each_unit
from pipeline.storage.location import Location

NUM_PLACES = 32  # of the input, at most, from which rows are taken
_NUM_RESAMPLES = 2000
_ROUNDS_OF_SLOTS = 4  # rows for each slot of an engine, below which its slots are half empty for much of the time


@dataclass(frozen=True)
class Measured:
    """What the rows of an estimate were and took."""

    counts: Counts
    seconds: float  # from the first unit's begin to the last commit, without starting Ray and loading models
    rows_by_unit: tuple[int, ...]
    tokens_by_unit: tuple[int, ...]
    lengths: tuple[int, ...]  # output tokens of each generation
    num_cut: int  # generations that ended at their limit

    def tokens_per_row(self) -> tuple[float, float, float]:
        """Return the mean output tokens of an input row, and the ends of its interval."""
        tokens, rows = np.array(self.tokens_by_unit), np.array(self.rows_by_unit)
        drawn = np.random.default_rng(0).integers(len(rows), size=(_NUM_RESAMPLES, len(rows)))
        means: npt.NDArray[np.float64] = tokens[drawn].sum(axis=1) / rows[drawn].sum(axis=1)
        low, high = np.percentile(means, [2.5, 97.5])
        return float(tokens.sum() / rows.sum()), float(low), float(high)

    def engine_hours(self, num_rows: int) -> tuple[float, float, float]:
        """Return the hours that one engine takes for this number of rows, and the ends of their interval."""
        mean, low, high = self.tokens_per_row()
        hours = num_rows / self.counts.num_rows * self.seconds / 3600
        return (hours, hours * low / mean, hours * high / mean) if mean else (hours, hours, hours)


def estimate(config: GenerateConfig, plan: Plan) -> Exit:
    """Do some rows of the plan, print what the missing rows of the run would take, and return the exit code."""
    assert config.estimate is not None
    with Progress(config.run.progress, "choosing rows"):
        units = list(spread_units(plan, config.estimate))
        to_do = plan.run_directory.missing_units() if plan.run_directory else plan.new_units()
        num_rows_to_do = sum(unit.num_rows for unit in to_do)
    if not units:
        print("the input has no rows, so there is nothing to estimate")
        return Exit.COMPLETE
    with _scratch(plan) as small:
        run_directory = create_run(small, units)
        measured = _measure(small, run_directory)
    if measured is None:
        return stopped(len(units), "; the estimate needs them all, and nothing of it was kept")
    for line in estimated(config, plan, measured, num_rows_to_do):
        Console().print(line, highlight=False)
    return Exit.COMPLETE


def spread_units(plan: Plan, num_rows: int) -> Iterator[WorkUnit]:
    """Yield small units with about `num_rows` rows together, from places that are spread evenly over the input.

    The input is planned once.
    """
    num_places = min(num_rows, NUM_PLACES)
    units = plan_units(plan.files, plan.input_options, max(1, num_rows // num_places))
    for place, unit in enumerate(evenly(units, num_places)):
        yield replace(unit, unit_id=place)


def evenly(units: Iterable[WorkUnit], most: int) -> list[WorkUnit]:
    """Return at most `most` of these units, spread evenly; all of them if they are no more.

    At most twice as many are held: whenever there are more, every other one is dropped, and from then on every other
    one is taken.
    """
    held: list[WorkUnit] = []
    stride = 1
    for number, unit in enumerate(units):
        if number % stride:
            continue
        held.append(unit)
        if len(held) > 2 * most:
            held, stride = held[::2], 2 * stride
    num = min(most, len(held))
    return [held[(2 * place + 1) * len(held) // (2 * num)] for place in range(num)]


@contextmanager
def _scratch(plan: Plan) -> Iterator[Plan]:
    """Yield the plan with one engine and a folder beside its output, which is deleted at the end."""
    output = Location.parse(plan.config.output.path)
    folder = output.at(f"{output.path.rstrip('/')}.estimate-{token_hex(4)}")
    run = replace(plan.config.run, audit_fraction=0.0)  # by which other engine?
    config = replace(plan.config, output=replace(plan.config.output, path=folder.name), run=run)
    pool = replace(plan.pool, min_actors=1, max_actors=1, initial_actors=None)
    try:
        yield replace(plan, config=config, pool=pool, run_directory=None)
    finally:
        if folder.is_local:
            shutil.rmtree(folder.path, ignore_errors=True)
        elif folder.files():
            folder.filesystem.delete_dir(folder.path)


def _measure(plan: Plan, run_directory: RunDirectory) -> Measured | None:
    """Do all units, and return what they took; None if the command was asked to stop."""
    missing = MissingUnits.of(run_directory, plan.tokens_per_row)
    counts, began, ended, num_done = Counts(), float("inf"), 0.0, 0
    with hold_lease(run_directory, plan.config.run.lease_timeout_s) as lease:
        for receipt in execute(missing, worker_spec(plan, run_directory), plan, lease=lease):
            ended = time.monotonic()
            began = min(began, ended - (receipt.seconds or 0.0))
            counts, num_done = counts + receipt.counts, num_done + 1
    if num_done < missing.num_units:
        return None
    rows_by_unit, tokens_by_unit, num_cut = [], [], 0
    lengths: list[int] = []
    for unit, rows in zip(run_directory.units(), each_unit(run_directory, run_directory.units()), strict=True):
        table = rows.generations
        of_unit = [int(length) for length in table["num_output_tokens"].to_numpy()]
        lengths += of_unit
        rows_by_unit.append(unit.num_rows)
        tokens_by_unit.append(sum(of_unit))
        num_cut += sum(reason == "length" for reason in table["finish_reason"].to_pylist())
    seconds = max(ended - began, 1e-9)
    return Measured(counts, seconds, tuple(rows_by_unit), tuple(tokens_by_unit), tuple(lengths), num_cut)


def estimated(config: GenerateConfig, plan: Plan, measured: Measured, num_rows: int) -> Iterator[Table | str]:
    """Yield for a reader what `num_rows` rows would take, and then what these figures cannot know."""
    counts, num_engines = measured.counts, plan.pool.max_actors
    mean, low, high = measured.tokens_per_row()
    tokens_per_second, rows_per_second = (
        number / measured.seconds for number in (counts.num_output_tokens, counts.num_rows)
    )
    engine_hours, *ends = measured.engine_hours(num_rows)
    gpus = plan.pool.num_gpus + sum(part.gpus_of_engine for part in plan.settings.apart)  # of one engine
    table = Table(title=f"Estimate for {num_rows:,} rows", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    num_places = len(measured.rows_by_unit)
    table.add_row("measured", f"{counts.num_rows:,} rows from {num_places} places, {counts.num_errors} of them failed")
    table.add_row("one engine", f"{tokens_per_second:,.0f} tokens/s, {rows_per_second:,.2f} rows/s")
    table.add_row("acceptance rate", format_rate(counts.acceptance_rate))
    table.add_row("tokens a row", f"{mean:,.1f} ({low:,.1f} to {high:,.1f})")
    if measured.lengths:
        tenth, half, ninety = np.percentile(measured.lengths, [10, 50, 90])
        spread = f"{tenth:,.0f} / {half:,.0f} / {ninety:,.0f} tokens (10, 50, 90 %), at most {max(measured.lengths):,}"
        cut = f"; {measured.num_cut / len(measured.lengths):.0%} ended at max_tokens" if measured.num_cut else ""
        table.add_row("lengths", spread + cut)
    table.add_row("output tokens", f"{mean * num_rows:,.0f} ({low * num_rows:,.0f} to {high * num_rows:,.0f})")
    table.add_row(
        f"time with {num_engines} engines",
        f"{format_seconds(3600 * engine_hours / num_engines)} "
        f"({format_seconds(3600 * ends[0] / num_engines)} to {format_seconds(3600 * ends[1] / num_engines)})",
    )
    table.add_row("engine hours", f"{engine_hours:,.2f} ({ends[0]:,.2f} to {ends[1]:,.2f})")
    table.add_row("GPU hours", f"{gpus * engine_hours:,.2f} ({gpus:g} GPUs an engine)" if gpus else "0 (no GPUs)")
    if (price := config.price_per_hour) is not None:
        table.add_row("price", f"{price * engine_hours:,.2f} ({price * ends[0]:,.2f} to {price * ends[1]:,.2f})")
    yield table
    yield "In brackets: 95 % intervals for which rows were drawn, from a bootstrap over the places."
    yield from (f"not known: {text}" for text in _unknown(plan, measured))


def _unknown(plan: Plan, measured: Measured) -> Iterator[str]:
    """Yield what the figures do not contain."""
    yield "the time to get machines, start Ray and load models, and work that is lost with machines"
    if plan.pool.max_actors > 1:
        yield f"whether {plan.pool.max_actors} engines are as fast as one each: they may share processors and storage"
    num_wanted = _ROUNDS_OF_SLOTS * plan.settings.most_slots
    if len(measured.lengths) < num_wanted:
        yield (
            f"the pace of full slots: {len(measured.lengths)} texts leave many of {plan.settings.most_slots} "
            f"slots empty at the end; with {num_wanted} texts or more the pace is nearer to that of the run"
        )
    if plan.config.learn.every_rows:
        yield "what the draft learns in the run, and what training takes"
