"""Work units: ranges of rows of the input files. A unit is read, generated and committed as a whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from pipeline.errors import RowError
from pipeline.inputs.files import InputFile, refuse_unreadable
from pipeline.inputs.options import InputOptions, first_object
from pipeline.inputs.records import file_columns, parquet_schema, parquet_size, read_records, split_records
from pipeline.inputs.values import is_text, visible
from pipeline.storage.location import Location

_NUM_SAMPLED_ROWS = 100
BYTES_PER_TOKEN = 4  # a rule of thumb for English; it only orders units and fills the plan's estimate


@dataclass(frozen=True, kw_only=True)
class WorkUnit:
    """Rows [row_start, row_start + num_rows) of a file; in text formats, its bytes [byte_start, byte_end).

    Its fields are the columns of `schema.MANIFEST`, in their order. A row's noise comes from `first_ordinal`, and so
    does not depend on how rows are cut into units.
    """

    unit_id: int
    first_ordinal: int
    file: str
    row_start: int
    num_rows: int
    byte_start: int | None
    byte_end: int | None
    estimated_tokens: int
    file_size: int
    file_version: str

    def row_id(self, index: int) -> int:
        """Return the run-wide id of the unit's row `index` (from 0): a position, so equal prompts are two rows."""
        assert 0 <= index < self.num_rows
        return self.unit_id << 32 | index

    def row_index(self, row_id: int) -> int:
        """Return the number in the unit of the row with this run-wide id."""
        return row_id - self.row_id(0)

    def row_name(self, row_id: int, user_id: str | int | None) -> str:
        """Return the name of a row for a reader: its own id, or else its file and its number there from 1."""
        return row_name(user_id, self.file, self.row_start + self.row_index(row_id))


def row_name(user_id: str | int | None, file: str, row_number: int) -> str:
    """Return the name of a row for a reader, given its own id, and its file and its number there from 0."""
    return visible(f"{Location.parse(file).short_name}#{row_number + 1}" if user_id is None else str(user_id))


def plan_units(files: Sequence[InputFile], options: InputOptions, rows_per_unit: int) -> Iterator[WorkUnit]:
    """Yield the units that cover every row of every file once, in order; each text file is read through once.

    An empty file has no unit. `options` have a settled format (`resolve_options`). Raises ValueError for a file that
    cannot be read or lacks a column that is asked for.
    """
    if not 1 <= rows_per_unit < 2**32:
        raise ValueError(f"rows_per_unit: expected a number from 1 to 2**32 - 1, got {rows_per_unit}")
    assert options.format != "auto", "resolve_options settles the format"
    unit_ids, first_ordinal = count(), 0
    for file in files:
        location = Location.parse(file.path)
        with refuse_unreadable(file.path, options.format):
            _refuse_missing_columns(location, options)
            _refuse_other_json(file, options)
            _refuse_prompts_of_another_type(location, options)
            ranges = _parquet_ranges if options.format == "parquet" else _text_ranges
            for rows in ranges(location, options, rows_per_unit):
                of_file: dict[str, Any] = {"file_size": file.size, "file_version": file.version}
                yield WorkUnit(unit_id=next(unit_ids), first_ordinal=first_ordinal, file=file.path, **rows, **of_file)
                first_ordinal += rows["num_rows"]


def count_rows(files: Sequence[InputFile], options: InputOptions, most: int) -> int:
    """Return how many rows the files have, or `most` if they have as many. Raises ValueError for unreadable ones."""
    number = 0
    for file in files:
        location = Location.parse(file.path)
        with refuse_unreadable(file.path, options.format):
            if options.format == "parquet":
                number += parquet_size(location, ())[0]
            else:
                number += sum(1 for _ in islice(split_records(location, options), most - number))
        if number >= most:
            return most
    return number


def _parquet_ranges(location: Location, options: InputOptions, rows_per_unit: int) -> Iterator[dict[str, Any]]:
    num_rows, num_bytes = parquet_size(location, prompt_columns(options))
    for start in range(0, num_rows, rows_per_unit):
        size = min(rows_per_unit, num_rows - start)
        tokens = num_bytes * size // num_rows // BYTES_PER_TOKEN
        yield {"row_start": start, "num_rows": size, "byte_start": None, "byte_end": None, "estimated_tokens": tokens}


def _text_ranges(location: Location, options: InputOptions, rows_per_unit: int) -> Iterator[dict[str, Any]]:
    row_start = 0
    spans = ((record.byte_start, record.byte_end) for record in split_records(location, options))
    while rows := list(islice(spans, rows_per_unit)):
        start, end = rows[0][0], rows[-1][1]
        rows_of = {"row_start": row_start, "num_rows": len(rows), "estimated_tokens": (end - start) // BYTES_PER_TOKEN}
        yield {**rows_of, "byte_start": start, "byte_end": end}
        row_start += len(rows)


def prompt_columns(options: InputOptions) -> tuple[str, ...]:
    """Return the columns that prompts are made from."""
    if options.template is not None:
        return (*options.template.columns, options.messages_column)
    return (options.prompt_column, options.messages_column)


def _refuse_missing_columns(location: Location, options: InputOptions) -> None:
    """Raise ValueError if no row of the file can have what is asked for."""
    present = file_columns(location, options)
    if not present:  # rows of their own columns, or an empty file
        return
    if twice := sorted({name for name in present if present.count(name) > 1}):
        raise ValueError(f"{location.name}: it has the column {twice[0]!r} twice; give every column its own name")
    found = f"the file has {', '.join(present)}"
    if options.format == "csv" and (others := {*",;\t|"} & {*"".join(present)} - {options.csv_separator}):
        found += f" (if {min(others)!r} separates its fields, set input.csv_separator)"
    if options.prompt_template is None and not {options.prompt_column, options.messages_column} & set(present):
        raise ValueError(
            f"{location.name}: neither a prompt column {options.prompt_column!r} nor a messages column "
            f"{options.messages_column!r}; {found}. Name one of them in input.prompt_column or input.messages_column"
        )
    wanted = set(options.carried_of(())) | ({options.id_column} if options.id_column else set())
    if options.template is not None:
        wanted |= set(options.template.columns)
    if missing := sorted(wanted - set(present)):
        raise ValueError(f"{location.name}: no column {', '.join(map(repr, missing))}; {found}")


def _refuse_other_json(file: InputFile, options: InputOptions) -> None:
    """Raise ValueError for a file that is JSON, but no JSON lines, or whose first lines are all no objects."""
    location = Location.parse(file.path)
    line = next(split_records(location, options), None) if options.format in ("jsonl", "openai_batch") else None
    start = b"" if line is None else line.data.lstrip()[:1]
    if line is None or (start != b"[" and first_object(file) is not None):
        return
    record = next(read_records(location, options))
    assert isinstance(record, RowError), "it is no object"
    forms = {b"[": ("one JSON array", "jq -c '.[]'"), b"{": ("JSON over several lines", "jq -c .")}
    form, command = forms.get(start, ("", ""))
    advice = f"; if it is {form}, this makes lines of it: {command} IN.json > OUT.jsonl" if form else ""
    raise ValueError(f"{file.path}, first line: {record.message}{advice}")


def _refuse_prompts_of_another_type(location: Location, options: InputOptions) -> None:
    """Raise ValueError if no prompt of the file is text: by the type of a Parquet column, or by the first JSON lines.

    A Parquet file with messages is taken as it is: its prompts may all be null.
    """
    column, found = options.prompt_column, ""
    if options.prompt_template is not None:
        return
    if options.format == "parquet":
        schema = parquet_schema(location)
        types = dict(zip(schema.names, schema.types, strict=True))
        if options.messages_column not in types and column in types and not is_text(types[column]):
            found = f"is of type {types[column]}"
    elif options.format == "jsonl":
        records = islice(read_records(location, options), _NUM_SAMPLED_ROWS)
        prompts = [record.get(column) for record in records if not isinstance(record, RowError)]
        if prompts and not any(prompt is None or isinstance(prompt, str) for prompt in prompts):
            found = f"has no text in the first {len(prompts)} rows (the first one has {prompts[0]!r:.80})"
    if found:
        raise ValueError(
            f"{location.name}: a prompt is text, and the column {column!r} {found}; name another prompt_column, name "
            f"this one as messages_column if it holds chats, or set prompt_template to '{{{column}}}' for its text"
        )
