"""Samples of a run to read, with their rounds where these were recorded: rows with an id, or spread over its input."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from jobs.report_page.rounds import Piece, RoundOfText, marked_text, rounds_of
from pipeline.inputs.units import WorkUnit
from pipeline.inputs.values import shown_rows, visible
from pipeline.run.commit import engine_of
from pipeline.run.directory import RunDirectory
from pipeline.run.reading import read_ahead
from pipeline.run.row_sample import NUM_SAMPLED, RowSample
from pipeline.run.unit_rows import UnitRows, read_unit_rows, rows_with_id
from pipeline.storage.location import Location
from pipeline.storage.parquet import read_columns
from pipeline.text.codec import TextCodec

_BITS_OF_ROW = 32
_MAX_EXAMPLES = 3
_MAX_TOKENS = 600  # of a sample on the page
_MAX_PROMPT = 3000  # characters
_COLUMNS = ["row_id", "sample", "id", "prompt", "text", "token_ids", "finish_reason", "stop_reason"]
_COLUMNS += ["num_prompt_tokens", "num_output_tokens", "num_rounds", "num_draft_tokens", "num_accepted_tokens"]
_OPTIONAL = ["draft_version", "draft_rounds", "turns", "logprob", "num_earlier_tokens", "num_unchanged_tokens"]
_OPTIONAL += ["num_tries"]


def find_rows(run_directory: RunDirectory, wanted: str) -> list[tuple[WorkUnit, int]]:
    """Return the committed rows with this id of their own or, if there are none, this name (`in.jsonl#17`) or row_id.

    Each is its unit and its row_id. Only ids are read, of one part after the other. Raises ValueError, in one line, if
    there is no such row, and OSError.
    """
    committed, failed = run_directory.committed_unit_ids(), run_directory.failed_unit_ids()
    parts = map(run_directory.part_path, committed)
    errors = map(run_directory.errors_path, sorted(failed.intersection(committed)))
    found: dict[int, None] = {}
    examples: list[str] = []
    for table in read_ahead(_ids, chain(parts, errors)):
        for row_id, user_id in zip(table["row_id"].to_pylist(), table["id"].to_pylist(), strict=True):
            assert row_id is not None, "no file of a run has a row without one"
            if user_id is not None and wanted in (str(user_id), visible(str(user_id))):
                found[row_id] = None
            elif user_id is not None and len(examples) < _MAX_EXAMPLES and str(user_id) not in examples:
                examples.append(str(user_id))
    if not found:
        found |= dict.fromkeys(_row_ids(run_directory, wanted))
    of_unit: dict[int, list[int]] = {}
    for row_id in found:
        of_unit.setdefault(row_id >> _BITS_OF_ROW, []).append(row_id)
    rows = [
        (unit, row_id)
        for unit in run_directory.units()
        for row_id in of_unit.get(unit.unit_id, ())
        if unit.row_index(row_id) < unit.num_rows
    ]
    if not rows:
        num_missing = run_directory.manifest.num_units - len(committed)
        known = "its rows have no ids of their own, since the run was begun without input.id_column"
        if (unit := next(iter(run_directory.units()), None)) is not None:
            known += f"; give file and number, such as {unit.row_name(unit.row_id(0), None)}"
        if examples:
            known = f"its ids are such as {', '.join(map(repr, examples))}; a row_id of data/ is taken as well"
        if num_missing:
            known += f"; {num_missing} of its units are not committed yet, and it may be in one of them"
        raise ValueError(f"{run_directory.location.name}: no row {wanted!r}: {known}")
    return rows


def _row_ids(run_directory: RunDirectory, name: str) -> Iterator[int]:
    """Yield the row_id that a name is, or those of the rows with this place in a file of this name."""
    file, _, number = name.rpartition("#")
    if not (number.isascii() and number.isdigit()):
        return
    if not file:
        yield int(number)
        return
    for unit in run_directory.units():
        index = int(number) - 1 - unit.row_start
        if 0 <= index < unit.num_rows and f"/{unit.file}".endswith(f"/{file}"):
            yield unit.row_id(index)


def _ids(location: Location) -> pa.Table:
    try:
        return read_columns(location, ["row_id", "id"])
    except FileNotFoundError:  # a retry has moved the last of a unit's error rows
        return pa.table({"row_id": pa.array([], pa.int64()), "id": pa.array([], pa.string())})


@dataclass(frozen=True)
class Sample:
    """A generation, or a row that failed (`error` is then its error row)."""

    row_id: int
    name: str
    kind: str
    row: Mapping[str, Any]
    rounds: list[RoundOfText] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)  # none: nothing was recorded, or no tokenizer can be had
    is_cut: bool = False  # whether the pieces are the beginning of the text
    is_error: bool = False
    drafter: str = ""  # of the engine that wrote its part; empty in parts that do not say so

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a round; None without a round, and for a row that failed."""
        rounds = 0 if self.is_error else self.row["num_rounds"]
        return 1 + self.row["num_accepted_tokens"] / rounds if rounds else None


def codec_or_why_not(run_directory: RunDirectory, given: str | None = None) -> tuple[TextCodec | None, str]:
    """Return the tokenizer of a run, in the folder that is `given` or named by the run; or None and why not."""
    models = run_directory.run.get("models") or {}
    try:
        path = given or models.get("tokenizer") or models.get("target")
        if not path:
            raise ValueError("run.json does not name the tokenizer")
        if not given and "/" not in path:  # the run of a part alone names it without its place, and no hub has it
            raise ValueError(f"{path} has no place here; name it with --model or --tokenizer")
        return TextCodec.load(str(path)), ""
    except (ValueError, OSError) as error:
        return None, f"the tokenizer is not to be had here: {error}"


def read_samples(run_directory: RunDirectory, codec: TextCodec | None, by: Sequence[str]) -> list[Sample]:
    """Return the first sample of each of some rows that are committed, the same ones whose rounds are recorded.

    Without a codec they have no pieces.
    """
    wanted, samples = list(RowSample(run_directory.manifest.num_rows, NUM_SAMPLED)), []
    for unit in run_directory.units():
        begin, end = (bisect_left(wanted, unit.first_ordinal + number) for number in (0, unit.num_rows))
        if begin == end:
            continue
        try:
            rows = read_unit_rows(run_directory, unit, columns=_columns_of(run_directory, by))
        except (OSError, ValueError):  # not committed yet, or damaged, which the facts of the run note
            continue
        for ordinal in wanted[begin:end]:
            row_id = unit.row_id(ordinal - unit.first_ordinal)
            samples += samples_of_row(rows, unit, row_id, codec, by, max_tokens=_MAX_TOKENS)[:1]
    return samples


def samples_of_row(
    rows: UnitRows,
    unit: WorkUnit,
    row_id: int,
    codec: TextCodec | None,
    by: Sequence[str],
    *,
    max_tokens: int | None = None,
) -> list[Sample]:
    """Return the samples of a row of a unit, or the one that stands for its error; [] if the row is in neither."""
    table = rows_with_id(rows.generations, row_id)
    kinds = map(", ".join, shown_rows(table, by))
    own = table.select([name for name in table.column_names if name in (*_COLUMNS, *_OPTIONAL)]).to_pylist()
    found = [_sample(row, unit, kind, codec, max_tokens) for row, kind in zip(own, kinds, strict=True)]
    drafter = str(engine_of(rows.generations.schema).get("drafter", ""))
    found = [replace(each, drafter=drafter) for each in found]
    return found or [
        Sample(row_id, unit.row_name(row_id, row["id"]), row["stage"], row, is_error=True)
        for row in rows_with_id(rows.errors, row_id).to_pylist()
    ]


def samples_of_found(
    run_directory: RunDirectory, unit: WorkUnit, row_id: int, codec: TextCodec | None, number: int | None
) -> list[Sample]:
    """Return the samples of a row that was found, or one of them. Raises ValueError if that one is not there."""
    name = unit.row_name(row_id, None)
    try:
        rows = read_unit_rows(run_directory, unit, columns=_columns_of(run_directory))
    except FileNotFoundError as error:
        raise ValueError(f"row {name} is in unit {unit.unit_id}, which is not committed yet") from error
    samples = samples_of_row(rows, unit, row_id, codec, ())
    if not samples:
        raise ValueError(f"row {name} is neither in data nor in errors; dray verify says more")
    if number is None or samples[0].is_error:
        return samples
    if not 0 <= number < len(samples):
        has = "one sample, number 0" if len(samples) == 1 else f"{len(samples)} samples, 0 to {len(samples) - 1}"
        raise ValueError(f"row {samples[0].name!r} has {has}; there is no sample {number}")
    return [samples[number]]


def _columns_of(run_directory: RunDirectory, by: Sequence[str] = ()) -> list[str]:
    """Return the columns of data/ that a sample needs."""
    there = run_directory.generations_schema.names
    return [*_COLUMNS, *(name for name in dict.fromkeys([*_OPTIONAL, *by]) if name in there and name not in _COLUMNS)]


def _sample(
    row: Mapping[str, Any], unit: WorkUnit, kind: str, codec: TextCodec | None, max_tokens: int | None
) -> Sample:
    turns = row.get("turns") or [{"num_output_tokens": row["num_output_tokens"]}]
    lengths = [turn["num_output_tokens"] for turn in turns]
    rounds = list(rounds_of(row.get("draft_rounds") or (), lengths))
    token_ids = row["token_ids"] if max_tokens is None else row["token_ids"][:max_tokens]
    prompt = row["prompt"] or ""
    pieces = marked_text(codec, prompt, token_ids, rounds) if codec is not None and rounds else []
    is_cut = len(token_ids) < len(row["token_ids"])
    if max_tokens is not None:
        row = {**row, "prompt": _beginning(prompt, _MAX_PROMPT), "text": _beginning(row["text"] or "", 6 * max_tokens)}
    return Sample(row["row_id"], unit.row_name(row["row_id"], row["id"]), kind, row, rounds, pieces, is_cut)


def _beginning(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + " …"
