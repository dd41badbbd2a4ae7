"""The work of `jobs.generate` and `jobs.retry`: what is missing of a corpus is generated, or failed rows run again."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from actors.engines import backend_of
from actors.resources import describe_placement
from actors.units.unit_rows import FailedRows
from decoding.checkpoint.generation import sampling_of
from decoding.checkpoint.gguf_file import origin_in_words
from decoding.checkpoint.loading import Footprint, footprint_of
from decoding.checkpoint.supported import load_config as load_model_config
from decoding.checkpoint.supported import max_positions
from decoding.drafters import NEED_A_MODEL
from decoding.engine.load import settle_max_model_len
from decoding.heads.fit import fitting_config, head_footprint
from decoding.heads.format.folder import is_head
from decoding.vocabulary.vocabulary_map import VocabularyMap
from jobs.config.run import GenerateConfig, RetryConfig
from jobs.driver.chosen import print_as_file, print_chosen
from jobs.driver.execution import execute
from jobs.driver.learning import learning, refuse_learning
from jobs.driver.outcome import (
    conclude,
    log_run_started,
    refuse_inexact_parts,
    refuse_too_many_errors,
    run_command,
    stopped,
)
from jobs.driver.plan import Plan, create_run, worker_spec
from jobs.driver.stopping import Exit
from jobs.driver.summary import print_ending, print_summary
from jobs.work.estimate import estimate
from pipeline.counts import Counts
from pipeline.id_set import IdSet
from pipeline.run.check import check_run, quarantine
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
    return run_command(config, _begin)


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
        return lambda: estimate(config, plan)
    if sys.stdout.isatty():
        print_chosen(plan.config)
    run_directory = create_run(plan)
    return lambda: _run(plan, run_directory)


def _run(plan: Plan, run_directory: RunDirectory) -> Exit:
    """Generate what is missing, as the only driver, and verify the whole."""
    if run_directory.is_success() and not any(run_directory.missing_units()):
        check = check_run(run_directory)
        if check.is_complete:
            print(f"Nothing left to do: {run_directory.location.name} is complete.")
            print_summary(run_directory, check)
            refuse_inexact_parts(run_directory, check, plan.config)
            print_ending(run_directory, plan.config.run)
            return Exit.COMPLETE
    with hold_lease(run_directory, plan.config.run.lease_timeout_s) as lease:
        started, new, num_done = time.monotonic(), Counts(), 0
        run_directory.unmark_success()
        for name in quarantine(run_directory, run_directory.truncated_parts()):
            print(f"{name}: was too short to be a part, and was moved there; its unit is done again")
        missing = MissingUnits.of(run_directory, plan.tokens_per_row)
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


def print_plan(plan: Plan) -> None:
    """Print what the run would do."""
    console, path = Console(), plan.config.output.path
    if plan.run_directory is None:
        units, committed = plan.new_units(), IdSet()
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
    models, engine, backend = plan.settings.models, plan.settings.engine, backend_of(plan.settings)
    drafter = engine.pick_drafter(models.draft)
    console.print(f"  input:   {len(plan.files)} files ({plan.input_options.format}), {num_rows:,} rows")
    made_of = origin_in_words(models.target)
    console.print(f"  target:  {models.target} ({models.device}, {models.dtype}{made_of})")
    has_model = drafter in NEED_A_MODEL
    for what, said in zip(("taken", "not applied"), _said_by_model(plan), strict=True):
        if said:
            console.print(f"  {what} of the model's generation_config.json: {said}", highlight=False)
    console.print(f"  engine:  {backend.describe()}", highlight=False)
    if has_model:
        made_of = origin_in_words(models.draft or "")
        console.print(f"  draft:   {models.draft}{made_of}{_draft_in_words(plan)}", highlight=False)
    placement = describe_placement(plan.settings, plan.pool.max_actors)
    console.print(f"  placement: {'in this process, without Ray' if plan.config.run.local else placement}")
    if plan.config.learn.every_rows:
        console.print(f"  learns:  after every {plan.config.learn.every_rows:,} committed rows")
    for name, model in (("target", models.target), ("draft", models.draft if has_model else None)):
        if model is not None and backend.plans_memory:
            console.print(f"  memory of an engine's {name}: {_footprint(plan, model)}")
    console.print(f"  units:   {num_units:,} of at most {largest:,} rows; {num_missing:,} missing")
    console.print(f"  prompts: about {missing_tokens:,} tokens to read (bytes / 4)")
    console.print(f"  {plan.task.describe(missing_rows, plan.settings.sampling)}", highlight=False)


def _footprint(plan: Plan, model: str) -> Footprint:
    """Return the memory of a model with all of an engine's slots; the stages of a target divide it among themselves."""
    engine, models = plan.settings.engine, plan.settings.models
    length = settle_max_model_len(engine.max_model_len, max_positions(load_model_config(models.target)))
    if model != models.target and is_head(model):
        config = fitting_config(model, load_model_config(models.target), models.target)
        return head_footprint(model, config, models.dtype, engine.num_slots, length)
    return footprint_of(load_model_config(model), models.dtype, engine.num_slots, length)


def _draft_in_words(plan: Plan) -> str:
    """Return for a reader what a head drafts and reads, and which tokens a mapped draft has; else nothing."""
    models = plan.settings.models
    draft, target = models.draft, models.target
    if draft is None or not backend_of(plan.settings).plans_memory:
        return ""
    if models.draft_vocabulary == "map":
        sizes = [load_model_config(path).get_text_config().vocab_size for path in (target, draft)]
        vocabulary = VocabularyMap.between(target, draft, sizes[0], sizes[1])
        return f" (mapped: has {vocabulary.num_common:,} of {sizes[0]:,} tokens)"
    if not is_head(draft):
        return ""
    config = fitting_config(draft, load_model_config(target), target)
    layers = ", ".join(map(str, config.layer_ids or ()))
    kind = f"{config.kind} head in the {config.format} format"
    tokens = f"{config.draft_vocab_size:,} of {config.vocab_size:,} tokens"
    return f" ({kind}; {tokens}, {config.layer_ids_are} of layers {layers})"


def _said_by_model(plan: Plan) -> tuple[str, str]:
    """Name what `generate` would take from the model's file: what this run takes, and what it does not."""
    chosen, asked = plan.settings.sampling, plan.config.sampling
    ours, others = sampling_of(plan.settings.models.target)
    if ours.get("temperature") == 0 and not asked.from_model:  # every file that does not say do_sample
        del ours["temperature"]
    taken = {name for name in ours if asked.from_model and not asked.is_given(name)}
    missed = {name: value for name, value in ours.items() if getattr(chosen, name) != value} | others
    return _listed({name: ours[name] for name in sorted(taken)}), _listed(missed)


def _listed(said: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in said.items())


def retry(config: RetryConfig) -> Exit:
    """Retry, and return the exit code, which means what it does for jobs.generate."""
    return run_command(config, _begin_retry)


def _begin_retry(config: RetryConfig, plan: Plan) -> Callable[[], Exit]:
    run_directory, wanted = plan.run_directory, Wanted(config.stage, config.error_type)
    if run_directory is None:
        raise ValueError(f"{config.output.path}: no run here; dray generate makes one")
    if config.dry_run:
        print_dead_letters(find_dead_letters(run_directory, wanted))
        return lambda: Exit.COMPLETE
    return lambda: _retry_wanted(plan, run_directory, wanted)


def _retry_wanted(plan: Plan, run_directory: RunDirectory, wanted: Wanted) -> Exit:
    """Try the wanted rows again, as the only driver, and verify the whole."""
    with hold_lease(run_directory, plan.config.run.lease_timeout_s) as lease:
        letters = find_dead_letters(run_directory, wanted)
        if not letters.num_wanted:
            why = "none of the failed rows is asked for" if letters.num_rows else "no row failed"
            print(f"Nothing to try again: {why}.")
            if letters.num_rows:
                print_dead_letters(letters)
            if run_directory.is_success():
                return Exit.COMPLETE
        started, tried, num_done = time.monotonic(), Counts(), 0
        run_directory.unmark_success()
        log_run_started(run_directory, len(letters.num_wanted))
        units = FailedUnits(run_directory.location.name, letters.num_wanted)
        if units.num_units and "WorkerDied" not in letters.wanted_types:
            # Enough units at once in an actor that their few failed rows fill the engine's slots; but not beside a row
            # that kills, whose deaths they would share.
            sequences_per_unit = units.num_rows / units.num_units * plan.settings.sampling.n
            num_at_once = ceil(plan.settings.engine.num_slots / sequences_per_unit)
            plan = replace(plan, pool=replace(plan.pool, units_in_flight=max(plan.pool.units_in_flight, num_at_once)))
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
