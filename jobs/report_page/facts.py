"""RunFacts: what the page of a run says about all of it, gathered in one pass over its parts.

A part is read by the columns that are counted, never its texts, and a few parts are in memory at once.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jobs.report_page.rounds import RecordedRounds, count_rounds
from pipeline.counts import COUNTED_COLUMNS, SCORED_COLUMNS, Counts, Scores, Sums, count_generations, count_scores
from pipeline.run.commit import receipt_of, work_of
from pipeline.run.directory import RunDirectory
from pipeline.run.reading import read_ahead
from pipeline.run.unit_rows import grouped, refuse_unknown_columns
from pipeline.storage.parquet import read_columns


@dataclass
class Timeline:
    """When the units of a run were at work, and how many tokens a second they wrote together.

    It holds three numbers of each unit, its begin, its end and its tokens, so that a million units fit.
    """

    _numbers: array[float] = field(default_factory=lambda: array("d"))
    knows_seconds: bool = True  # False as soon as a unit's time is unknown

    def add(self, ended_at: float, seconds: float | None, num_tokens: int) -> None:
        """Add a unit that was committed at this time, in seconds since 1970; `seconds` is None if its part has none."""
        self.knows_seconds &= seconds is not None
        self._numbers.extend((ended_at - (seconds or 0.0), ended_at, num_tokens))

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self._numbers) // 3

    @property
    def began_at(self) -> float:
        """When the first unit began (or ended, where parts do not say how long they took), in seconds since 1970."""
        return min(self._numbers[0::3])

    @property
    def ended_at(self) -> float:
        """When the last unit was committed."""
        return max(self._numbers[1::3])

    @property
    def working_seconds(self) -> float | None:
        """Seconds in which at least one unit was under way, pauses left out; None where parts do not say."""
        if not self or not self.knows_seconds:
            return None
        order = np.argsort(self._numbers[0::3])
        begun, ended = np.array(self._numbers[0::3])[order], np.maximum.accumulate(np.array(self._numbers[1::3])[order])
        pauses = np.maximum(begun[1:] - ended[:-1], 0.0).sum()
        return float(ended[-1] - begun[0] - pauses)

    def tokens_per_second(self, num_bins: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the edges of equal stretches of time, in seconds from the begin, and the tokens a second in each.

        A unit's tokens are spread evenly over its time.
        """
        edges = np.linspace(0.0, max(self.ended_at - self.began_at, 1e-3), num_bins + 1)
        begun, ended, tokens = np.array(self._numbers).reshape(-1, 3).T
        times, lengths = self.began_at + edges, np.maximum(ended - begun, 1e-6)
        written = [(tokens * np.clip((time - begun) / lengths, 0.0, 1.0)).sum() for time in times]
        return edges, np.diff(written) / edges[1]


OTHERS = "(others)"
_MAX_GROUPS = 40
_MAX_KINDS = 20  # different values of a column by which a page groups unasked
_PARTS_LOOKED_AT = 4  # to find such a column
_MAX_NOTES = 5
_PARTS_AHEAD = 8
_LENGTHS_OF_TURNS = "turns.list.element.num_output_tokens"  # in Parquet: the texts of the turns are not read


@dataclass(frozen=True)
class Group(Sums):
    """The counts of the rows of one kind, with the scores of their texts in a run of scores."""

    counts: Counts = field(default_factory=Counts)
    rounds: RecordedRounds = field(default_factory=RecordedRounds)
    scores: Scores = field(default_factory=Scores)


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
        return sum(self.groups.values(), Group())

    def add(self, table: pa.Table, written_at: float) -> None:
        """Count the rows of one more part; `written_at` is the time of its file, for parts that say no other."""
        receipt, work = receipt_of(table.schema), work_of(table.schema)
        self.attempts[receipt.attempt] += 1
        if work is not None:
            self.peak_memory[work.process] = max(self.peak_memory.get(work.process, 0), work.peak_memory_bytes)
            if work.round_seconds and work.round_seconds not in self.round_seconds:
                self.round_seconds.append(work.round_seconds)
        ended_at, seconds = (written_at, None) if work is None else (work.ended_at, work.seconds)
        self.timeline.add(ended_at, seconds, receipt.counts.num_output_tokens)
        for values, part in grouped(table, self.by):
            name = ", ".join(value.shown for value in values)
            name = name if name in self.groups or len(self.groups) < _MAX_GROUPS else OTHERS
            scores = count_scores(part) if set(SCORED_COLUMNS) <= {*part.column_names} else Scores()
            found = Group(count_generations(part), count_rounds(part), scores)
            self.groups[name] = self.groups.get(name, Group()) + found
        for (version,), samples in grouped(table, ["draft_version"]) if "draft_version" in table.column_names else ():
            number = int(version.shown)
            self.versions[number] = self.versions.get(number, Counts()) + count_generations(samples)
        of_prompts = table.select(["sample", "num_prompt_tokens"]).filter(pc.field("sample") == 0)
        for counter, column in (
            (self.finish_reasons, table["finish_reason"]),
            (self.output_lengths, table["num_output_tokens"]),
            (self.prompt_lengths, of_prompts["num_prompt_tokens"]),
        ):
            counter.update(cast("list[Any]", column.to_pylist()))


def gather(run_directory: RunDirectory, by: Sequence[str] | None = None) -> RunFacts:
    """Return the facts of the units that are committed now, grouped by these columns, or by one that suits.

    A part that cannot be read is left out and noted. Raises ValueError for a column that is not there, and OSError.
    """
    refuse_unknown_columns(run_directory, by or ())
    parts = run_directory.committed_parts()
    columns = tuple(by) if by is not None else suitable_column(run_directory, sorted(parts))
    wanted = [*COUNTED_COLUMNS, *SCORED_COLUMNS, "finish_reason", "draft_version", "draft_rounds", *columns]
    wanted = [name for name in dict.fromkeys(wanted) if name in run_directory.generations_schema.names]
    wanted += [_LENGTHS_OF_TURNS] if run_directory.has("turns") else []
    facts = RunFacts(columns, run_directory.manifest.num_units)
    tables = read_ahead(lambda unit_id: _read_part(run_directory, unit_id, wanted), sorted(parts), _PARTS_AHEAD)
    for unit_id, found in zip(sorted(parts), tables, strict=True):
        if isinstance(found, str):
            facts.notes.append(found)
        else:
            facts.num_committed += 1
            facts.add(found, (parts[unit_id].mtime_ns or 0) / 1e9)
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


def _read_part(run_directory: RunDirectory, unit_id: int, columns: Sequence[str]) -> pa.Table | str:
    """Return these columns of a part, with its footer; a sentence if it cannot be read."""
    try:
        table = read_columns(run_directory.part_path(unit_id), columns)
        receipt_of(table.schema)
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = type(error.__cause__ or error).__name__
        return f"part {unit_id} could not be read ({why}); dray verify says more"
    return table
