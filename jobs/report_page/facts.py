"""RunFacts: what the page of a run says about all of it, gathered in one pass over its parts.

A part is read by the columns that are counted, never its texts, and a few parts are in memory at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.report_page.marked_text import rounds_of
from jobs.report_page.recorded_rounds import RecordedRounds
from jobs.report_page.timeline import Timeline, UnitTime
from pipeline.counts import COUNTED_COLUMNS, Counts, count_generations
from pipeline.inputs.arrow_values import shown_rows
from pipeline.run.commit import Work, receipt_of, work_of
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import pick_rows, read_ahead
from pipeline.schema import SCORE_COLUMNS

OTHERS = "(others)"
_MAX_GROUPS = 40
_MAX_KINDS = 20  # different values of a column by which a page groups unasked
_PARTS_LOOKED_AT = 4  # to find such a column
_MAX_NOTES = 5
_PARTS_AHEAD = 8
_LENGTHS_OF_TURNS = "turns.list.element.num_output_tokens"  # in Parquet: the texts of the turns are not read


@dataclass
class Group:
    """The counts of the rows of one kind; `logprob` is the sum of their texts' in a run of scores."""

    counts: Counts = field(default_factory=Counts)
    rounds: RecordedRounds = field(default_factory=RecordedRounds)
    logprob: float = 0.0

    @property
    def perplexity(self) -> float | None:
        """exp(-logprob / tokens) of all texts together; None without a token."""
        tokens = self.counts.num_output_tokens
        return math.exp(min(-self.logprob / tokens, 700.0)) if tokens else None


@dataclass
class RunFacts:
    """What was gathered of the committed units of a run. `by` names the columns that `groups` has the values of."""

    by: tuple[str, ...]
    num_units: int
    num_committed: int = 0
    groups: dict[str, Group] = field(default_factory=dict)
    versions: dict[int, Counts] = field(default_factory=dict)  # counts of samples by the version of their draft
    finish_reasons: Counter[str] = field(default_factory=Counter)
    output_lengths: Counter[int] = field(default_factory=Counter)  # samples by number of tokens
    prompt_lengths: Counter[int] = field(default_factory=Counter)  # rows by number of tokens
    attempts: Counter[int] = field(default_factory=Counter)  # units by how often they were begun again
    peak_memory: dict[str, int] = field(default_factory=dict)  # bytes, by process
    round_seconds: list[tuple[float, ...]] = field(default_factory=list)  # the different ones of `Work`
    timeline: Timeline = field(default_factory=Timeline)
    notes: list[str] = field(default_factory=list)  # what could not be read

    @property
    def whole(self) -> Group:
        """The counts of all rows that were generated."""
        whole = Group()
        for group in self.groups.values():
            whole.counts += group.counts
            whole.rounds.add(group.rounds)
            whole.logprob += group.logprob
        return whole

    def add(self, table: pa.Table, written_at: float) -> None:
        """Count the rows of one more part; `written_at` is the time of its file, for parts that say no other."""
        receipt, work = receipt_of(table.schema), work_of(table.schema)
        self.attempts[receipt.attempt] += 1
        self._add_work(work)
        spent = UnitTime(written_at, None) if work is None else UnitTime(work.ended_at, work.seconds)
        self.timeline.add(spent, receipt.counts.num_output_tokens, receipt.counts.num_rows)
        for name, part in _by_values(table, self.by):
            self._group(name).counts += count_generations(part, num_errors=0)
            self._add_details(self._group(name), part)
        if "draft_version" in table.column_names:
            for version, samples in _by_values(table, ["draft_version"]):
                number = int(version)
                self.versions[number] = self.versions.get(number, Counts()) + count_generations(samples, 0)
        self.finish_reasons.update(_counted(table["finish_reason"]))
        self.output_lengths.update(_counted(table["num_output_tokens"]))
        firsts = [place for place, sample in enumerate(table["sample"].to_pylist()) if sample == 0]
        of_rows = table["num_prompt_tokens"].take(pa.array(firsts, pa.int64()))  # none where all rows failed
        self.prompt_lengths.update(_counted(of_rows))

    def _add_work(self, work: Work | None) -> None:
        if work is None:
            return
        self.peak_memory[work.process] = max(self.peak_memory.get(work.process, 0), work.peak_memory_bytes)
        if work.round_seconds and work.round_seconds not in self.round_seconds:
            self.round_seconds.append(work.round_seconds)

    def _add_details(self, group: Group, part: pa.Table) -> None:
        if "logprob" in part.column_names:
            group.logprob += sum(value for value in part["logprob"].to_pylist() if value is not None)
        if "draft_rounds" not in part.column_names:
            return
        lengths: list[Any] = part["num_output_tokens"].to_pylist()
        turns = part["turns"].to_pylist() if "turns" in part.column_names else [None] * len(lengths)
        for rounds, length, of_turns in zip(part["draft_rounds"].to_pylist(), lengths, turns, strict=True):
            if rounds is not None:
                turn_lengths = [length] if of_turns is None else [turn["num_output_tokens"] for turn in of_turns]
                group.rounds.add_sample(rounds_of(rounds, turn_lengths))

    def _group(self, name: str) -> Group:
        if name not in self.groups and len(self.groups) >= _MAX_GROUPS:
            name = OTHERS
        return self.groups.setdefault(name, Group())


def gather(run_directory: RunDirectory, by: Sequence[str] | None = None) -> RunFacts:
    """Return the facts of the units that are committed now, grouped by these columns, or by one that suits.

    A part that cannot be read is left out and noted. Raises ValueError for a column that is not there, and OSError.
    """
    schema = run_directory.generations_schema
    for name in by or ():
        if name not in schema.names:
            raise ValueError(f"the output has no column {name!r}; it has {', '.join(schema.names)}")
    parts = sorted(_committed(run_directory), key=lambda part: part[0])
    columns = tuple(by) if by is not None else suitable_column(run_directory, [unit_id for unit_id, _ in parts])
    wanted = [*COUNTED_COLUMNS, "finish_reason", "draft_version", "draft_rounds", "row_id", *columns]
    wanted += [column.name for column in SCORE_COLUMNS if column.name == "logprob"]
    wanted = [name for name in dict.fromkeys(wanted) if name in schema.names]
    wanted += [_LENGTHS_OF_TURNS] if run_directory.has_turns else []
    facts = RunFacts(columns, run_directory.manifest.num_units)

    def read(part: tuple[int, float]) -> pa.Table | str:
        return _read_part(run_directory, part[0], wanted)

    for (_, written_at), found in zip(parts, read_ahead(read, parts, _PARTS_AHEAD), strict=True):
        if isinstance(found, str):
            facts.notes.append(found)
        else:
            facts.num_committed += 1
            facts.add(found, written_at)
    if len(facts.notes) > _MAX_NOTES:
        facts.notes[_MAX_NOTES:] = [f"and {len(facts.notes) - _MAX_NOTES} more parts that could not be read"]
    return facts


def suitable_column(run_directory: RunDirectory, unit_ids: Sequence[int]) -> tuple[str, ...]:
    """Return the first carried column that has some different values, but few, in a few parts; () if there is none."""
    types = run_directory.generations_schema
    plain = [
        name
        for name in run_directory.run["carried"]
        if pa.types.is_string(kind := types.field(name).type) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    ]
    step = max(1, len(unit_ids) // _PARTS_LOOKED_AT)
    tables = [_read_part(run_directory, unit_id, plain) for unit_id in unit_ids[::step][:_PARTS_LOOKED_AT] if plain]
    found = [table for table in tables if not isinstance(table, str)]
    for name in plain if found else []:
        values = {value for table in found for value in pc.unique(table[name]).to_pylist()}
        if 2 <= len(values) <= _MAX_KINDS:
            return (name,)
    return ()


def _committed(run_directory: RunDirectory) -> Iterator[tuple[int, float]]:
    """Yield (unit id, time of its file) of each part, from one listing."""
    committed = run_directory.committed_unit_ids()
    for info in run_directory.location.child("data").list():
        number = info.base_name.removeprefix("part-").removesuffix(".parquet")
        if number.isdigit() and int(number) in committed:
            yield int(number), (info.mtime_ns or 0) / 1e9


def _read_part(run_directory: RunDirectory, unit_id: int, columns: Sequence[str]) -> pa.Table | str:
    """Return these columns of a part, with its footer; a sentence if it cannot be read."""
    location = run_directory.part_path(unit_id)

    def read() -> pa.Table:
        with location.filesystem.open_input_file(location.path) as file:
            return pq.ParquetFile(file, pre_buffer=True).read(list(columns))

    try:
        table = location.retrying("reading", read)
        receipt_of(table.schema)
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
        return f"part {unit_id} could not be read ({type(error).__name__}); python -m jobs.verify says more"
    return table


def _by_values(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each combination of values of these columns, under the values' names."""
    rows: dict[str, list[int]] = {}
    for index, values in enumerate(shown_rows(table, columns)):
        rows.setdefault(", ".join(values), []).append(index)
    for name, indices in rows.items():
        yield name, pick_rows(table, indices)


def _counted(column: pa.ChunkedArray[Any]) -> Counter[Any]:
    return Counter(column.to_pylist())
