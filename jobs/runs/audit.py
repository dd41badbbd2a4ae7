"""The work of `dray audit`: is a run what its models, prompts and seed write? A sample of its rows is written again."""

import argparse
import random
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, groupby
from typing import Any

import pyarrow as pa

from actors.engines.backend import why_inexact
from actors.placement import DraftSettings, StageSettings
from decoding.choices import TEXT_IS_THE_TARGETS
from jobs.config.loading import checked
from jobs.config.run import RunConfig
from jobs.config.train import LearnSettings
from jobs.driver.plan import Plan, unchecked_plan
from jobs.driver.stopping import Exit
from jobs.names import tell
from jobs.runs.certainty import CONFIDENCE, most_differing
from jobs.runs.written_again import Again, RecordedRow
from pipeline.export.published_run import opened
from pipeline.inputs.files import InputFile
from pipeline.inputs.rows import read_unit
from pipeline.inputs.units import WorkUnit, plan_units
from pipeline.run.check import CheckReport, check_run
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import read_unit_rows
from pipeline.storage.location import Location
from pipeline.streaming.pool import ActorPool

_MOST_SHOWN = 20  # differences that are printed
_MOST_ROWS = (1 << 32) - 1  # of a unit
_PATHS = "input.files"  # of an identity: paths and times of change, which other copies of the files do not have

Inputs = Sequence[tuple[InputFile, int]]  # each file that has rows, with their number


def audit(options: argparse.Namespace) -> int:
    """Audit, print what was found, and return 0, 1 if something differs, or 2 if it cannot be audited."""
    try:
        with opened(options.run) as run:
            return _audit(run, options)
    except (ValueError, OSError, pa.ArrowException) as error:
        tell(f"error: {error}")
        return Exit.BAD_CONFIGURATION


def _audit(run: RunDirectory, options: argparse.Namespace) -> int:
    began, plan = time.monotonic(), plan_again(run, options)
    inputs, check = inputs_of(plan, run), check_run(run)
    changes = {name: line for name, line in run.changes(plan.identity).items() if name != _PATHS}
    others = [f"run.json: {line.strip()} here" for line in changes.values()] + [*_of_manifest(inputs, run)]
    problems = [*others, *_of_parts(check, is_partial=options.partial)]
    _print_some(problems)
    if others:
        print("no text was compared: with what is here other ones are written")
        return Exit.FAILED
    again = Again(plan)
    for line in _of_engines(again, check):
        print(line)
    committed = run.committed_unit_ids()
    units = [unit for unit in run.units() if unit.unit_id in committed]
    num_rows = sum(unit.num_rows for unit in units)
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    places = random.Random(seed).sample(range(num_rows), min(options.rows or num_rows, num_rows))
    found = again.compared(recorded_rows(plan, run, inputs, _by_unit(units, sorted(places))))
    lost = [name for name, is_checkable, _ in found if not is_checkable]
    differences = [difference for _, is_checkable, difference in found if difference is not None and is_checkable]
    near_ties = [str(each) for each in differences if each.is_near_tie]
    differing = [str(each) for each in differences if not each.is_near_tie]
    _print_some(differing)
    for line in near_ties[:_MOST_SHOWN]:
        print(f"near tie, behind which it was not compared: {line}")
    if lost:
        print(f"{len(lost)} rows, recorded as failures of the process that wrote, were not compared: {lost[:5]}")
    num_compared, seconds = len(found) - len(lost), time.monotonic() - began
    print(
        f"{num_compared:,} of {num_rows:,} rows (seed {seed}), {again.num_tokens:,} tokens, {seconds:.1f} s with "
        f"loading: {len(differing)} rows differ" + (f", {len(near_ties)} at near ties" if near_ties else "")
    )
    share = most_differing(num_rows, len(found), len(differences) + len(lost))
    unknown = " or cannot be compared" if lost or near_ties else ""
    print(f"with {CONFIDENCE:.0%} confidence at most {share:.2%} of the rows differ{unknown}")
    return Exit.FAILED if problems or differing else Exit.COMPLETE


def plan_again(run: RunDirectory, given: argparse.Namespace) -> Plan:
    """Return the plan of a run, by what its run.json says, for an engine here that follows the run's texts.

    Raises ValueError, in one line, for a run whose texts no one can write again, and for what is not here.
    """
    said, where = run.run, run.location.name
    if run.has("scores"):
        raise ValueError(f"{where} cannot be audited: its rows are scores, and what is audited are texts")
    config = checked(RunConfig, said["settings"], f"{where}: settings of run.json")
    engine, models, identity = config.generator.engine, config.generator.models, said["identity"]
    if (verification := identity.get("verification")) not in TEXT_IS_THE_TARGETS:
        raise ValueError(f"{where} cannot be audited: {why_inexact(verification)}")
    device: Any = given.device or models.device
    models = replace(
        models,
        target=given.model or said["models"]["target"],
        tokenizer=given.tokenizer or (None if given.model else said["models"]["tokenizer"]),
        draft=None,
        candidates=(),
        draft_vocabulary="same",
        device=device,
        dtype=identity["dtype"],
    )
    engine = replace(
        engine,
        drafter="suffix",
        draft_length="adaptive",
        draft_window=None,
        num_lanes=None,
        num_slots=given.slots or engine.num_slots,
    )
    generator = replace(
        config.generator,
        models=models,
        engine=engine,
        placement="colocated",
        drafts=DraftSettings(),
        stages=StageSettings(),
    )
    config = replace(
        config,
        generator=generator,
        actors=ActorPool(),
        learn=LearnSettings(),
        input=replace(config.input, path=given.input or config.input.path),
        output=replace(config.output, path=where),
        sampling=replace(config.sampling, names_given=None),  # all stand in run.json, also those that no one gave
        run=replace(config.run, local=True, ray_address=None, exact="any"),
    )
    if named := config.beyond_one_process:
        raise ValueError(
            f"{where} cannot be audited: it has {named[0]}, and what is audited are texts of Dray's engine"
        )
    return unchecked_plan(config)


def recorded_rows(
    plan: Plan, run: RunDirectory, inputs: Inputs, wanted: Iterable[tuple[WorkUnit, Sequence[int]]]
) -> Iterator[RecordedRow]:
    """Yield the rows with these numbers in these units, as they are recorded and as the input has them now."""
    here = dict(zip(dict.fromkeys(unit.file for unit in run.units()), inputs, strict=True))
    for unit, numbers in wanted:
        rows, (file, _) = read_unit_rows(run, unit), here[unit.file]
        moved = replace(unit, file=file.path, file_size=file.size, file_version=file.version)
        read = list(read_unit(moved, plan.input_options, plan.carried, run.id_type))
        for number in numbers:
            yield RecordedRow.of(unit, rows, read[number])


def inputs_of(plan: Plan, run: RunDirectory) -> Inputs:
    """Return each file here that has rows. Raises ValueError unless they have the names and sizes of the run's."""
    num_rows = Counter[str]()
    for unit in plan_units(plan.files, plan.input_options, _MOST_ROWS):
        num_rows[unit.file] += unit.num_rows
    found = [(file, num_rows[file.path]) for file in plan.files if num_rows[file.path]]
    planned = [(Location.parse(file).short_name, size) for file, size in _planned(run)]
    here = [(Location.parse(file.path).short_name, file.size) for file, _ in found]
    if planned != here:
        was, now = (", ".join(f"{name} ({size:,} bytes)" for name, size in each) for each in (planned, here))
        raise ValueError(f"the run's input is {was}, and here is {now}; name the run's own with --input")
    return found


def _planned(run: RunDirectory) -> dict[tuple[str, int], int]:
    """Return the rows that the manifest has of each file, by its path and size."""
    num_rows = Counter[tuple[str, int]]()
    for unit in run.units():
        num_rows[unit.file, unit.file_size] += unit.num_rows
    return num_rows


def _of_manifest(inputs: Inputs, run: RunDirectory) -> Iterator[str]:
    """Yield what the manifest leaves out of the input, or has at another place than it says."""
    for ((path, _), planned), (_, here) in zip(_planned(run).items(), inputs, strict=True):
        if planned != here:
            yield f"manifest: it has {planned:,} rows of {path}, and the file has {here:,}"
    ordinal, ends = 0, Counter[str]()
    for unit in run.units():
        if (unit.first_ordinal, unit.row_start) != (ordinal, ends[unit.file]):
            yield f"manifest: unit {unit.unit_id} does not go on where the one before it ends"
        ordinal, ends[unit.file] = ordinal + unit.num_rows, unit.row_start + unit.num_rows


def _of_parts(check: CheckReport, *, is_partial: bool) -> Iterator[str]:
    return (line for line in check.problems if not (is_partial and line.startswith("unit ")))  # of missing units


def _of_engines(again: Again, check: CheckReport) -> Iterator[str]:
    """Yield what is to be said of the engines that wrote and of that here. Raises ValueError if they may differ."""
    here, others = again.engine.footer, [each for each in check.engines if not again.is_of_one_kind(each)]
    if "no" in (here["exact_text"], *(each.get("exact_text") for each in check.engines)):
        raise ValueError(
            f"it cannot be audited: in {here['dtype']} its texts depend on the batch, where they were written or here "
            "(docs/promise.md)"
        )
    if not others:
        return
    kinds = ", ".join(sorted({f"{each.get('device')} {each.get('kernels')}".rstrip() for each in others}))
    if here["dtype"] != "float32":
        raise ValueError(
            f"it cannot be audited here: it was written on {kinds}, and {here['device']} {here['kernels']} rounds "
            f"otherwise in {here['dtype']}; audit it on a machine of that kind"
        )
    yield (
        f"note: written on {kinds}, audited on {here['device']} {here['kernels']}: where the two best tokens are "
        f"within {again.engine.loop.engine.close_call:g} logits, rounding may decide otherwise, which is said apart"
    )


def _by_unit(units: Sequence[WorkUnit], places: Iterable[int]) -> Iterator[tuple[WorkUnit, list[int]]]:
    """Yield the units in which some rows are, with their numbers there; `places` count the rows of all units."""
    ends = list(accumulate(unit.num_rows for unit in units))
    for index, own in groupby(places, partial(bisect_right, ends)):
        yield units[index], [place - ends[index] + units[index].num_rows for place in own]


def _print_some(lines: Sequence[str]) -> None:
    for line in lines[:_MOST_SHOWN]:
        print(f"differs: {line}")
    if len(lines) > _MOST_SHOWN:
        print(f"differs: and {len(lines) - _MOST_SHOWN:,} more")
