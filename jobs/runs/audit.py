"""The work of `dray audit`: is a run what its models, prompts and seed write? A sample of its rows is written again."""

import argparse
import asyncio
import json
import random
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, groupby, zip_longest
from pathlib import Path

import pyarrow as pa

from actors.engine.loop import HANG_TIMEOUT_S
from actors.engines.backend import why_inexact
from actors.engines.loading import LoadedEngine
from actors.workers.written_again import Again, RecordedRow, outcome
from decoding.choices import TEXT_IS_THE_TARGETS
from decoding.sampling_params import SamplingParams
from jobs.config.loading import checked
from jobs.config.run import RunConfig
from jobs.driver.plan import Plan, unchecked_plan
from jobs.driver.stopping import Exit
from jobs.names import tell
from jobs.runs.certainty import CONFIDENCE, most_differing
from pipeline.export.published_run import is_part, opened
from pipeline.inputs.rows import read_unit
from pipeline.inputs.units import WorkUnit, plan_units
from pipeline.run.check import CheckReport, check_run
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import deciding
from pipeline.run.row_sample import NO_ROWS
from pipeline.run.unit_rows import read_unit_rows
from pipeline.storage.location import Location

_MOST_SHOWN = 20  # differences that are printed
_PATHS = "input.files"  # of an identity: paths and times of change, which other copies of the files do not have


def audit(options: argparse.Namespace) -> int:
    """Write rows again, print what was found, and return 0, 1 if something differs, or 2 if it cannot be audited."""
    try:
        if is_part(Location.parse(options.run)):
            raise ValueError(f"{options.run} is a part alone; name its run, or dray show it with --regenerate")
        with opened(options.run) as run:
            return _audit(run, options)
    except (ValueError, OSError, pa.ArrowException) as error:
        tell(f"error: {error}")
        return Exit.BAD_CONFIGURATION


def _audit(run: RunDirectory, options: argparse.Namespace) -> int:
    began, plan = time.monotonic(), plan_again(run, options)
    inputs, check = inputs_of(plan, run), check_run(run)
    others = [f"run.json: {line} here" for line in _changes(plan, run)] + [*_of_manifest(inputs, run)]
    is_missing = ("unit",) if options.partial else ()  # the first word of what is said of a missing unit
    problems = others + [line for line in check.problems if line.partition(" ")[0] not in is_missing]
    _print_some("differs", problems)
    if others:
        print("no text was compared: with what is here other ones are written")
        return Exit.FAILED
    again = _again(plan)
    if (note := _of_engines(again, check)) is not None:
        print(note)
    committed = run.committed_unit_ids()
    units = [unit for unit in run.units() if unit.unit_id in committed]
    num_rows = sum(unit.num_rows for unit in units)
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    places = random.Random(seed).sample(range(num_rows), min(options.rows or num_rows, num_rows))
    found = asyncio.run(again.compared(recorded_rows(plan, run, inputs, _by_unit(units, sorted(places)))))
    lost = [name for name, is_checkable, _ in found if not is_checkable]
    differences = [difference for _, is_checkable, difference in found if difference is not None and is_checkable]
    near_ties = [str(each) for each in differences if each.is_near_tie]
    differing = [str(each) for each in differences if not each.is_near_tie]
    _print_some("differs", differing)
    _print_some("near tie, behind which it was not compared", near_ties)
    if lost:
        print(f"not compared, since a process failed over them, there or here: {len(lost)} of the rows, {lost[:5]}")
    num_compared, seconds = len(found) - len(lost), time.monotonic() - began
    print(
        f"{num_compared:,} of {num_rows:,} rows (seed {seed}), {again.num_tokens:,} tokens, {seconds:.1f} s with "
        f"loading: {len(differing)} {'row differs' if len(differing) == 1 else 'rows differ'}"
        + (f", {len(near_ties)} at near ties" if near_ties else "")
    )
    share = most_differing(num_rows, len(found), len(differences) + len(lost))
    unknown = " or cannot be compared" if lost or near_ties else ""
    print(f"with {CONFIDENCE:.0%} confidence at most {share:.2%} of the rows differ{unknown}")
    return Exit.FAILED if problems or differing else Exit.COMPLETE


def regenerate(run: RunDirectory, rows: Iterable[tuple[WorkUnit, int]], options: argparse.Namespace) -> int:
    """Write rows of a run again, each given with its unit; print whether they are the same, and return the exit code.

    Raises ValueError for what cannot be written again.
    """
    plan = plan_again(run, options)
    wanted = [(unit, [unit.row_index(row_id)]) for unit, row_id in rows]
    recorded = list(recorded_rows(plan, run, inputs_of(plan, run), wanted))
    found = asyncio.run(_again(plan).compared(recorded))
    for row, (name, is_checkable, difference) in zip(recorded, found, strict=True):
        what = f"row {name}, {outcome(None, len(row.texts))} of {sum(map(len, row.texts)):,} tokens, the same"
        if not is_checkable:
            what = f"row {name} was not compared: a process failed over it, there or here"
        print(f"written again: {difference if difference is not None and is_checkable else what}")
    if changes := _changes(plan, run):
        print("\n  ".join(["with what is here, and not with what the run names:", *changes]))
    if not all(is_checkable for _, is_checkable, _ in found):
        return Exit.BAD_CONFIGURATION
    return Exit.COMPLETE if all(difference is None for *_, difference in found) else Exit.FAILED


def plan_again(run: RunDirectory, given: argparse.Namespace) -> Plan:
    """Return the plan of a run, by what its run.json says, for an engine here that follows the run's texts.

    Raises ValueError, in one line, for a run whose texts no one can write again, and for what is not here.
    """
    said, where, verification = run.run, run.location.name, run.run["identity"].get("verification")
    if verification not in TEXT_IS_THE_TARGETS:
        raise ValueError(f"{where} cannot be audited: {why_inexact(verification)}")
    if run.has("scores") or run.has("turns"):
        raise ValueError(f"{where} cannot be audited: its rows are scores, or programs, whose tools may answer anew")
    settings = deciding(said["settings"])
    if not settings["input"]:
        raise ValueError(f"{where} cannot be audited: its run.json has no configuration of a dray generate")
    if settings["sampling"].get("from_model"):  # which of these were given is not known any more, but what they became
        default, became = json.loads(json.dumps(vars(SamplingParams()))), said["identity"]["sampling"]
        left_open = [name for name, value in settings["sampling"].items() if value == default.get(name)]
        settings["sampling"] |= {name: became[name] for name in left_open if name in became} | {"from_model": False}
    models = {
        "target": given.model or said["models"]["target"],
        "tokenizer": given.tokenizer or (None if given.model else said["models"]["tokenizer"]),
        "device": given.device or settings["models"].get("device", "auto"),
        "dtype": said["identity"]["dtype"],
    }
    path = given.input or settings["input"]["path"]
    if not path:
        files = ", ".join(dict.fromkeys(unit.file for unit in run.units()))
        raise ValueError(f"a part alone does not say where its input {files} is; name it with --input")
    for flag, name in (("model", models["target"]), ("tokenizer", models["tokenizer"])):
        if name and ("/" not in name or "@" in name) and not Path(name).exists():
            raise ValueError(f"the {flag} {name} of this run is not here; name its place with --{flag}")
    engine = {"drafter": "suffix", "num_slots": given.slots or settings["engine"].get("num_slots", 16)}
    own = {
        "input": {**settings["input"], "path": path},
        "output": {"path": where, "parts": run.has("parts")},
        "models": {**settings["models"], **models},
        "engine": {**settings["engine"], **engine},
        "run": {**settings["run"], "local": True},
    }
    config = checked(RunConfig, {**settings, **own}, f"run.json of {where}")
    # All parameters stand in run.json, also those that no one gave.
    return unchecked_plan(replace(config, sampling=replace(config.sampling, names_given=None)))


def _again(plan: Plan) -> Again:
    """Return the engine of the plan of a run, loaded in this process, and its rows."""
    assert plan.run_directory is not None, "what is written again is of a run"
    engine = LoadedEngine(plan.settings, None, HANG_TIMEOUT_S)
    return Again(engine, plan.task.rows(engine, plan.run_directory, NO_ROWS))


def inputs_of(plan: Plan, run: RunDirectory) -> list[WorkUnit]:
    """Return the units of the input that is here, as large as the run's.

    Raises ValueError unless its files that have rows have the names and sizes of the run's.
    """
    most = max((unit.num_rows for unit in run.units()), default=1)
    inputs = list(plan_units(plan.files, plan.input_options, most))
    planned, here = (
        [(Location.parse(unit.file).short_name, unit.file_size) for unit in _firsts(units)]
        for units in (run.units(), inputs)
    )
    if planned != here:
        was, now = (", ".join(f"{name} ({size:,} bytes)" for name, size in each) for each in (planned, here))
        raise ValueError(f"the run's input is {was}, and here is {now}; name the run's own with --input")
    return inputs


def recorded_rows(
    plan: Plan, run: RunDirectory, inputs: Sequence[WorkUnit], wanted: Iterable[tuple[WorkUnit, Sequence[int]]]
) -> Iterator[RecordedRow]:
    """Yield the rows with these numbers in these units, as they are recorded and as the input has them now."""
    here = {unit.file: own for unit, own in zip(_firsts(run.units()), _firsts(inputs), strict=True)}
    for unit, numbers in wanted:
        rows, file = read_unit_rows(run, unit), here[unit.file]
        moved = replace(unit, file=file.file, file_size=file.file_size, file_version=file.file_version)
        read = list(read_unit(moved, plan.input_options, plan.carried, run.id_type))
        for number in numbers:
            yield RecordedRow.of(unit, rows, read[number])


def _firsts(units: Iterable[WorkUnit]) -> list[WorkUnit]:
    """Return the first unit of each file."""
    firsts: dict[str, WorkUnit] = {}
    for unit in units:
        firsts.setdefault(unit.file, unit)
    return list(firsts.values())


def _changes(plan: Plan, run: RunDirectory) -> list[str]:
    return [line.strip() for name, line in run.changes(plan.identity).items() if name != _PATHS]


def _of_manifest(inputs: Sequence[WorkUnit], run: RunDirectory) -> Iterator[str]:
    """Yield what the manifest leaves out of the input, or has at another place than it is."""
    planned, here = Counter[str](), Counter[str]()
    for unit, own in zip_longest(run.units(), inputs):
        if unit is not None and (own is None or _place(unit) != _place(own)):
            yield f"manifest: unit {unit.unit_id} has other rows of the input than it should have"
        planned.update({} if unit is None else {unit.file: unit.num_rows})
        here.update({} if own is None else {own.file: own.num_rows})
    for (path, was), now in zip(planned.items(), here.values(), strict=True):
        if was != now:
            yield f"manifest: it has {was:,} rows of {path}, and the file has {now:,}"


def _place(unit: WorkUnit) -> tuple[int | None, ...]:
    return unit.unit_id, unit.first_ordinal, unit.row_start, unit.num_rows, unit.byte_start, unit.byte_end


def _of_engines(again: Again, check: CheckReport) -> str | None:
    """Return what is to be said of the engines that wrote and of that here. Raises ValueError if they may differ."""
    here, others = again.engine.footer, [each for each in check.engines if not again.is_of_one_kind(each)]
    if "no" in (here["exact_text"], *(each.get("exact_text") for each in check.engines)):
        raise ValueError(
            f"it cannot be audited: in {here['dtype']} its texts depend on the batch, where they were written or here "
            "(docs/promise.md)"
        )
    kinds = ", ".join(sorted({f"{each.get('device')} {each.get('kernels')}" for each in others}))
    if others and here["dtype"] != "float32":
        raise ValueError(
            f"it cannot be audited here: it was written on {kinds}, and {here['device']} {here['kernels']} rounds "
            f"otherwise in {here['dtype']}; audit it on a machine of that kind"
        )
    margin = f"{again.engine.loop.engine.close_call:g} logits"
    note = f"note: written on {kinds}, audited on {here['device']} {here['kernels']}: where the two best tokens are"
    return f"{note} within {margin}, rounding may decide otherwise, which is said apart" if others else None


def _by_unit(units: Sequence[WorkUnit], places: Iterable[int]) -> Iterator[tuple[WorkUnit, list[int]]]:
    """Yield the units in which some rows are, with their numbers there; `places` count the rows of all units."""
    ends = list(accumulate(unit.num_rows for unit in units))
    for index, own in groupby(places, partial(bisect_right, ends)):
        yield units[index], [place - ends[index] + units[index].num_rows for place in own]


def _print_some(what: str, lines: Sequence[str]) -> None:
    for line in lines[:_MOST_SHOWN]:
        print(f"{what}: {line}")
    if len(lines) > _MOST_SHOWN:
        print(f"{what}: and {len(lines) - _MOST_SHOWN:,} more")
