"""Made-up units, generations and runs for tests."""

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.errors import ErrorRow
from pipeline.inputs.carried import carried_types, id_type
from pipeline.inputs.files import InputFile
from pipeline.inputs.options import InputOptions, resolve_options
from pipeline.inputs.rows import InputRow, read_unit
from pipeline.inputs.units import WorkUnit, plan_units
from pipeline.run.commit import commit_part
from pipeline.run.directory import RunDirectory
from pipeline.schema import TEXT, errors_table, generations_schema
from pipeline.storage.location import Location
from pipeline.storage.parquet import to_parquet
from pipeline.storage.whole_file import replace_file
from pipeline.text.chat import Chat
from pipeline.text.codec import TextCodec

RUN = {"identity": {"target": {"sha": "a"}, "seed": 7}, "settings": {"drafter": "ngram"}, "carried": {}}
RUN["has_draft_version"] = True
ROUNDS = [  # of a `generation`
    {"num_accepted_tokens": 2, "rejected_token_ids": [50]},
    {"num_accepted_tokens": 1, "rejected_token_ids": [51]},
]


def unit(unit_id: int = 0, num_rows: int = 3) -> WorkUnit:
    return WorkUnit(
        unit_id=unit_id,
        first_ordinal=unit_id * num_rows,
        file="prompts.jsonl",
        row_start=unit_id * num_rows,
        num_rows=num_rows,
        byte_start=0,
        byte_end=10,
        estimated_tokens=2,
        file_size=10,
        file_version="1",
    )


def input_row(**values: Any) -> InputRow:
    """Make a row, which has a prompt unless `values` say otherwise."""
    defaults: dict[str, Any] = {"row_id": 0, "row_number": 0, "user_id": None, "prompt": "the cat"}
    defaults |= {"messages": None, "overrides": {}, "columns": {}, "carried": {}}
    return InputRow(**{**defaults, **values})


def chat_prompt(codec: TextCodec, messages: Any, max_tokens: int | None = None) -> tuple[str, list[int]]:
    """Return the prompt of messages as text and as token ids."""
    found = codec.chat(Chat(messages), max_tokens)
    return found.text, found.token_ids


def generation(row_id: int, sample: int = 0, **values: Any) -> dict[str, Any]:
    """Make a sound row of two rounds: the first accepts 2 of 3 draft tokens, the second 1 of 2; length 5."""
    row = {
        "row_id": row_id,
        "sample": sample,
        "id": f"user-{row_id}",
        "prompt": "hello",
        "is_chat": False,
        "text": "abcde",
        "token_ids": [7, 8, 9, sample, row_id % 100],
        "finish_reason": "length",
        "stop_reason": None,
        "num_prompt_tokens": 4,
        "num_cached_tokens": 3 if sample else 0,
        "draft_version": 0,
        "num_output_tokens": 5,
        "num_rounds": 2,
        "num_draft_tokens": 5,
        "num_accepted_tokens": 3,
        "accepted_per_position": [2, 1],
        "logprobs": None,
        "top_logprobs": None,
    }
    return {**row, **values}


def generations(rows: list[dict[str, Any]], id_type: pa.DataType = TEXT) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=generations_schema({}, id_type))


def error(work_unit: WorkUnit, index: int, message: str = "bad") -> ErrorRow:
    return ErrorRow(
        row_id=work_unit.row_id(index),
        id=f"user-{index}",
        file=work_unit.file,
        row_number=index,
        stage="read",
        error_type="ValueError",
        message=message,
        attempt=1,
    )


def write_errors(run_directory: RunDirectory, unit_id: int, indices: list[int]) -> None:
    """Write an errors file for these rows of a unit, whatever is in its part."""
    errors = errors_table([error(unit(unit_id), index) for index in indices])
    put(run_directory.errors_path(unit_id), to_parquet(errors))


def exit_code_of(function: Callable[..., None], *arguments: Any) -> int | None:
    """Run the function in a fork of this process, and return its exit code."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join(30)
    return process.exitcode


def commit_rows(
    run_directory: RunDirectory, work_unit: WorkUnit, rows: list[dict[str, Any]], errors: list[ErrorRow]
) -> Any:
    rows = [{"draft_rounds": ROUNDS, **row} for row in rows]  # a column that not every run has
    table = pa.Table.from_pylist(rows, schema=run_directory.generations_schema)
    failed = errors_table(errors, run_directory.id_type)
    return commit_part(run_directory, work_unit, table, failed, attempt=1)


def sound_rows(work_unit: WorkUnit, indices: list[int]) -> list[dict[str, Any]]:
    return [generation(work_unit.row_id(index), sample) for index in indices for sample in (0, 1)]


def put(location: Location, content: bytes) -> None:
    """Write a file, and make the folder that it is in."""
    location.at(location.path.rpartition("/")[0]).make_folder()
    replace_file(location, content, location.at(location.path.rpartition("/")[0]))


def committed_run(path: str | Path | Location, **more: Any) -> RunDirectory:
    """Make a run of 2 units, 3 rows each; row 1 of unit 1 is an error, every other row has 2 samples.

    `more` has entries of run.json, such as has_rounds.
    """
    path = path if isinstance(path, Location) else str(path)
    run_directory = RunDirectory.create(path, RUN | more, [unit(0), unit(1)])
    commit_rows(run_directory, unit(0), sound_rows(unit(0), [0, 1, 2]), [])
    commit_rows(run_directory, unit(1), sound_rows(unit(1), [0, 2]), [error(unit(1), 1)])
    return run_directory


def run_with_integer_ids(path: str) -> RunDirectory:
    """Make a run of 1 unit of 3 rows, whose ids are 70, 71 and 72; the second and the third are errors."""
    run_directory = RunDirectory.create(path, {**RUN, "id_type": "int64"}, [unit()])
    commit_rows(run_directory, unit(), [generation(0, id=70)], [replace(error(unit(), k), id=70 + k) for k in (1, 2)])
    return run_directory


def read_all(files: list[InputFile], options: InputOptions, rows_per_unit: int) -> list[InputRow | ErrorRow]:
    """Read every row of the files, unit by unit, with the types that a run over them has."""
    options = resolve_options(files, options)
    types, id_of = carried_types(files, options), id_type(files, options)
    units = plan_units(files, options, rows_per_unit)
    return [row for work_unit in units for row in read_unit(work_unit, options, types, id_of)]


def sound(row: InputRow | ErrorRow) -> InputRow:
    assert isinstance(row, InputRow), row
    return row


def failed(row: InputRow | ErrorRow) -> ErrorRow:
    assert isinstance(row, ErrorRow), row
    return row
