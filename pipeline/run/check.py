"""Prove a run complete and consistent from what is on disk, part by part; move what is damaged to quarantine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count, groupby, pairwise
from typing import Any

import pyarrow as pa
from pyarrow import fs

from pipeline.counts import Counts, count_generations
from pipeline.inputs.units import WorkUnit
from pipeline.run.commit import engine_of, receipt_of
from pipeline.run.directory import COMMIT_LOCK, DRIVER_LOCK, RunDirectory
from pipeline.run.reading import READS_AT_ONCE, by_chunks, read_ahead
from pipeline.run.unit_rows import without_rows_of
from pipeline.schema import GENERATION_COLUMNS
from pipeline.storage.location import Location
from pipeline.storage.parquet import table_of
from pipeline.storage.whole_file import replace_file

_MAX_PROBLEMS_PER_UNIT = 20
_UNCHECKED_COLUMNS = {"id", "prompt", "is_chat", "text", "stop_reason", "top_logprobs", "draft_version"}
_Listed = tuple[WorkUnit, str, bool, bool]  # a unit, the name of its files, and whether data/ and errors/ have it
_CHECKED_COLUMNS = [column.name for column in GENERATION_COLUMNS if column.name not in _UNCHECKED_COLUMNS]


@dataclass
class CheckReport:
    """What is wrong with a run: nothing, if `problems` is empty. `notes` are harmless oddities.

    `counts` are those of the rows that were read, not of the footers. `damaged` maps each file ("data/part-...") that
    must go before the run can be completed to the reason: the part and the error rows of a damaged unit, and foreign
    files.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    num_units: int = 0
    num_committed_units: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    # The different engines that wrote the parts, as their footers say.
    engines: list[dict[str, str | bool | int]] = field(default_factory=list)

    def add(self, other: CheckReport) -> None:
        """Add what was found in other units, which come behind those of this report."""
        self.problems += other.problems
        self.notes += other.notes
        self.counts += other.counts
        self.num_units += other.num_units
        self.num_committed_units += other.num_committed_units
        self.damaged |= other.damaged
        self.engines += [engine for engine in other.engines if engine not in self.engines]

    @property
    def is_complete(self) -> bool:
        """Whether every row is in data or in errors, once, and all counts agree."""
        return not self.problems


def check_run(run_directory: RunDirectory) -> CheckReport:
    """Check that every unit has a part, that every row is in data or in errors once, and that counts add up.

    Raises ValueError if the manifest is damaged, because the run's expected content is then unknown, and OSError if the
    storage does not answer.
    """
    location = run_directory.location
    # data/ is listed first: the error rows of a part are written before it, so errors/ then has them.
    foreign = {folder: {info.base_name for info in location.child(folder).list()} for folder in ("data", "errors")}
    report = CheckReport()
    for found in by_chunks(check_units, run_directory, _listed(run_directory, foreign), len(foreign["data"])):
        report.add(found)
    names = [f"{folder}/{name}" for folder in foreign for name in sorted(foreign[folder])]
    report.problems += [f"{name}: not a part of this run; move it away" for name in names]
    report.damaged |= dict.fromkeys(names, "not a part of this run")
    leftovers = sorted({info.base_name for info in run_directory.temporary.list()} - {COMMIT_LOCK, DRIVER_LOCK})
    report.notes += [f"_tmp/{name}: left by a process that died while writing; safe to delete" for name in leftovers]
    return report


def _listed(run_directory: RunDirectory, names: Mapping[str, set[str]]) -> Iterator[_Listed]:
    """Yield each unit, and take its files from these names of each folder."""
    for unit in run_directory.units():
        name = f"part-{unit.unit_id:09d}.parquet"
        has_part, has_errors = name in names["data"], name in names["errors"]
        for of_folder in names.values():
            of_folder.discard(name)
        yield unit, name, has_part, has_errors


def check_units(run_directory: RunDirectory, units: list[_Listed]) -> CheckReport:
    """Return what is wrong with these units, each given with the files that it has, and what they hold."""
    report = CheckReport(num_units=len(units), num_committed_units=sum(has_part for _, _, has_part, _ in units))
    read = partial(_read, run_directory)
    contents = read_ahead(read, units, READS_AT_ONCE)
    for (unit, name, has_part, has_errors), found in zip(units, contents, strict=True):
        if not has_part:
            report.problems.append(
                f"unit {unit.unit_id} (rows {unit.row_start + 1} on of {unit.file}) is missing; run again"
            )
            continue
        problems = [*_problems_of_unit(run_directory, unit, name, report, *found)]
        if problems:
            folders = ("data", "errors") if has_errors else ("data",)
            report.damaged |= {f"{folder}/{name}": problems[0] for folder in folders}
        report.problems += problems[:_MAX_PROBLEMS_PER_UNIT]
        if len(problems) > _MAX_PROBLEMS_PER_UNIT:
            report.problems.append(f"data/{name}: and {len(problems) - _MAX_PROBLEMS_PER_UNIT} more problems")
    return report


def _read(run_directory: RunDirectory, listed: _Listed) -> tuple[bytes, bytes | None]:
    """Return the bytes of a unit's part and of its error rows, if it has them."""
    # They are not parsed here, so that a store that does not answer is not taken for damage. The error rows are read
    # before the part, so that a row that a retry moves meanwhile is seen in both files, not in neither. They may be
    # gone since they were listed: a retry has moved the last of them to data.
    unit, _, has_part, has_errors = listed
    errors = run_directory.errors_path(unit.unit_id).read_if_there() if has_part and has_errors else None
    return run_directory.part_path(unit.unit_id).read_bytes() if has_part else b"", errors


def _problems_of_unit(
    run: RunDirectory, unit: WorkUnit, name: str, report: CheckReport, part_bytes: bytes, errors_bytes: bytes | None
) -> Iterator[str]:
    """Yield what is wrong with a unit's files; add to the report what they hold, and who wrote them."""
    try:
        generations = table_of(part_bytes)
        receipt = receipt_of(generations.schema)
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
        yield f"data/{name}: damaged, or no part of a run ({type(error).__name__}: {error})"
        return
    if not generations.schema.equals(run.generations_schema):
        yield f"data/{name}: its columns are not those of a generations table: {generations.schema.names}"
        return
    try:
        errors = generations.slice(0, 0) if errors_bytes is None else table_of(errors_bytes)
        if errors_bytes is not None and not errors.schema.equals(run.errors_schema):
            raise ValueError(f"its columns are not those of an errors table: {errors.schema.names}")
    except (OSError, pa.ArrowException, ValueError) as error:
        yield f"errors/{name}: damaged ({error})"
        return
    failed = without_rows_of(generations, errors)
    failed_ids = [row_id for row_id in failed["row_id"].to_pylist() if row_id is not None]
    counts, engine = count_generations(generations, len(failed_ids)), engine_of(generations.schema)
    report.counts += counts
    if engine and engine not in report.engines:
        report.engines.append(engine)
    if num_stale := errors.num_rows - failed.num_rows:
        report.notes.append(
            f"errors/{name}: {num_stale} of its rows are in data and count as generated; a retry died before it "
            "deleted them here, and the next dray retry does"
        )
    problems = [*_row_problems(generations, failed_ids, unit), *_count_problems(generations, unit)]
    if receipt.unit_id != unit.unit_id:
        problems.append(f"its footer says unit {receipt.unit_id}")
    written, found = receipt.counts.to_dict(), counts.to_dict()
    problems += [
        f"{what} is {written[what]} in the footer and {found[what]} in the rows"
        for what in written
        if written[what] != found[what]
    ]
    yield from (f"data/{name}: {problem}" for problem in problems)


def _row_problems(generations: pa.Table, failed_ids: list[int], unit: WorkUnit) -> Iterator[str]:
    """Yield a sentence for each kind of row or sample that is missing, doubled or foreign."""
    expected = set(range(unit.row_id(0), unit.row_id(0) + unit.num_rows))
    found = list(zip(generations["row_id"].to_pylist(), generations["sample"].to_pylist(), strict=True))
    keys, generated_ids = sorted(found), {row_id for row_id, _ in found if row_id is not None}
    if keys != found:
        yield "its rows are not in the order of row_id and sample"
    for row_id, group in groupby(keys, key=lambda key: key[0]):
        samples = [sample for _, sample in group]
        if samples != list(range(len(samples))):
            yield f"row {_some({row_id}, unit)} has samples {samples}, expected {list(range(len(samples)))}"
    if twice := {row_id for row_id, num_times in Counter(failed_ids).items() if num_times > 1}:
        yield f"rows {_some(twice, unit)} are in errors more than once"
    if missing := expected - generated_ids - set(failed_ids):
        yield f"rows {_some(missing, unit)} are neither in data nor in errors"
    if foreign := (generated_ids | set(failed_ids)) - expected:
        yield f"rows {_some(foreign, unit)} are not of this unit"


def _count_problems(generations: pa.Table, unit: WorkUnit) -> Iterator[str]:
    """Yield a sentence for each row whose counts contradict each other."""
    columns = [*_CHECKED_COLUMNS, *({"draft_version", "num_turns", "draft_rounds"} & set(generations.schema.names))]
    for batch in generations.select(columns).to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            for problem in contradictions(row):
                yield f"row {_some({row['row_id']}, unit)} sample {row['sample']}: {problem}"


def contradictions(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each identity that the counts of a generation row do not obey; a sound row has none."""
    accepted, drafted, rounds = row["num_accepted_tokens"], row["num_draft_tokens"], row["num_rounds"]
    per_position, num_output = row["accepted_per_position"], row["num_output_tokens"]
    if nulls := [name for name in _CHECKED_COLUMNS if row[name] is None and name != "logprobs"]:
        yield f"{', '.join(nulls)} is null"
        return
    if len(row["token_ids"]) != num_output:
        yield f"num_output_tokens is {num_output} and there are {len(row['token_ids'])} token_ids"
    if row["logprobs"] is not None and len(row["logprobs"]) != num_output:
        yield f"num_output_tokens is {num_output} and there are {len(row['logprobs'])} logprobs"
    version = row.get("draft_version", 0)  # in runs begun before there was such a column
    if version is None or version < 0:
        yield f"draft_version is {version}"
    prompt, cached = row["num_prompt_tokens"], row["num_cached_tokens"]
    if cached >= prompt:
        yield f"num_cached_tokens is {cached} and num_prompt_tokens {prompt}: the newest token is always computed"
    if min(accepted, drafted, rounds, num_output, cached, *per_position, 0) < 0:
        yield "a count is negative"
    if sum(per_position) != accepted:
        yield f"accepted_per_position sums to {sum(per_position)} and num_accepted_tokens is {accepted}"
    if any(later > earlier for earlier, later in pairwise(per_position)):
        yield f"accepted_per_position increases: {per_position}"
    if accepted > drafted:
        yield f"num_accepted_tokens is {accepted} and num_draft_tokens {drafted}"
    if row.get("draft_rounds") is not None:
        yield from _contradictions_of_rounds(row)
    # Each round commits its accepted tokens and one of the target's own. A sequence that stops at an accepted token
    # never gets the target's own token of the last round; one that reaches its length limit does, since no draft goes
    # beyond the limit.
    if row["finish_reason"] == "scored":
        if rounds or drafted:
            yield f"its text was given, and yet it counts {rounds} rounds and {drafted} drafted tokens"
        return
    lost = accepted + rounds - num_output
    if not 0 <= lost <= (row.get("num_turns") or 1) - (row["finish_reason"] == "length"):
        yield (
            f"{accepted} accepted tokens and {rounds} rounds do not make {num_output} output tokens "
            f"(finish_reason {row['finish_reason']})"
        )


def _contradictions_of_rounds(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each count that is not the sum of the row's recorded rounds."""
    rounds = row["draft_rounds"]
    accepted = [each["num_accepted_tokens"] for each in rounds]
    found = {
        "num_rounds": len(rounds),
        "num_accepted_tokens": sum(accepted),
        "num_draft_tokens": sum(accepted) + sum(len(each["rejected_token_ids"]) for each in rounds),
        "accepted_per_position": [
            sum(count > place for count in accepted) for place in range(max(accepted, default=0))
        ],
    }
    for name, number in found.items():
        if row[name] != number:
            yield f"{name} is {row[name]} and its draft_rounds say {number}"


def _some(row_ids: set[int], unit: WorkUnit) -> str:
    """Name some rows of a unit; of a foreign one only its number is known."""
    own = range(unit.row_id(0), unit.row_id(0) + unit.num_rows)
    shown = ", ".join(unit.row_name(each, None) if each in own else str(each) for each in sorted(row_ids)[:5])
    return shown if len(row_ids) <= 5 else f"{shown} and {len(row_ids) - 5} more"


def quarantine(run_directory: RunDirectory, damaged: Mapping[str, str]) -> list[str]:
    """Move the files, given with their reasons, away; return their new names ("quarantine/data/part-...").

    A `.json` beside each file, written first, holds its reason; the file keeps its bytes. Parts are moved before their
    error rows: a unit without its part is not committed, and its next attempt replaces its error rows. The caller makes
    sure that no other process works on the run. Raises OSError; files that were moved by then stay moved.
    """
    if not damaged:
        return []
    run_directory.unmark_success()
    moved = []
    for name in sorted(damaged, key=lambda name: (not name.startswith("data/"), name)):
        names = (f"quarantine/{name}{f'.{number}' if number else ''}" for number in count())
        places = map(run_directory.location.child, names)
        source, target = run_directory.location.child(name), next(free for free in places if not free.exists())
        target.at(target.path.rpartition("/")[0]).make_folder()
        reason = {"file": name, "reason": damaged[name], "moved": datetime.now(UTC).isoformat("T", "seconds")}
        note = (json.dumps(reason, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        replace_file(target.at(f"{target.path}.json"), note, run_directory.temporary)
        _move(source, target)
        moved.append(target.path.removeprefix(f"{run_directory.location.path.rstrip('/')}/"))
    return moved


def _move(source: Location, target: Location) -> None:
    """Move the file; a store copies it and deletes the old one."""

    def move() -> None:
        try:
            source.filesystem.move(source.path, target.path)
        except FileNotFoundError:  # an earlier try whose answer was lost may have moved it
            if target.info().type == fs.FileType.NotFound:
                raise

    source.retrying("moving away", move)
