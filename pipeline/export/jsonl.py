"""Plain JSON lines: one for every generation, and in a file of its own one for every row that failed."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import IO, Any

import pyarrow as pa

from pipeline.inputs.carried import JSON_TEXT, types_from_dict
from pipeline.inputs.values import base64_text, plain_values
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import each_unit, refuse_incomplete
from pipeline.schema import OPTIONAL_COLUMNS
from pipeline.storage.location import Location
from pipeline.storage.whole_file import replacement

# The table's other columns (token ids, logprobs, rounds) are large, and for programs that read Parquet.
_COLUMNS = ["id", "row_id", "sample", "prompt", "is_chat", "text", "finish_reason", "stop_reason"]
_COLUMNS += ["num_prompt_tokens", "num_cached_tokens", "num_output_tokens", "num_rounds", "num_draft_tokens"]
_COLUMNS += ["num_accepted_tokens", "accepted_per_position"]


def export_jsonl(run_directory: RunDirectory, path: str, errors_path: str | None) -> tuple[int, int]:
    """Write generations to `path` and, if it is given, failed rows to `errors_path`; return how many there are of both.

    Carried columns come last, as plain values; those that hold JSON text are JSON again, bytes are base64, and a number
    that JSON does not have (NaN) is null. Each of the files appears whole or not at all. Raises IncompleteRunError,
    before anything is written, if a unit is not committed, ValueError for damaged parts, and OSError.
    """
    refuse_incomplete(run_directory)
    carried = types_from_dict(run_directory.run["carried"])
    own = [*_COLUMNS, *(["draft_version"] if run_directory.has("draft_version") else [])]
    kinds = [kind for kind in run_directory.column_sets if kind != "rounds"]
    own += [column.name for kind in kinds for column in OPTIONAL_COLUMNS[kind]]
    columns = [*own, *carried]
    num_generations = num_errors = 0
    with ExitStack() as files:
        stream = files.enter_context(replacement(Location.parse(path)))
        errors_stream = files.enter_context(replacement(Location.parse(errors_path))) if errors_path else None
        for rows in each_unit(run_directory, run_directory.units(), columns):
            for row in _dicts(rows.generations.select(columns), carried):
                _write(stream, row)
            for row in _dicts(rows.errors, {}):
                if errors_stream is not None:
                    _write(errors_stream, row)
            num_generations += rows.generations.num_rows
            num_errors += rows.errors.num_rows
    return num_generations, num_errors


def _dicts(table: pa.Table, carried: Mapping[str, pa.DataType]) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=1024):
        columns = {name: batch[name].to_pylist() for name in table.column_names if name not in carried}
        for name, type_ in carried.items():
            cells = plain_values(batch[name], base64_text)
            columns[name] = [c if c is None else json.loads(c) for c in cells] if type_ == JSON_TEXT else cells
        for row in zip(*columns.values(), strict=True):
            yield dict(zip(columns, row, strict=True))


def _write(stream: IO[bytes], row: Mapping[str, Any]) -> None:
    try:
        line = json.dumps(row, ensure_ascii=False, allow_nan=False)
    except ValueError:  # the row holds NaN or infinity
        without_nan = json.loads(json.dumps(row), parse_constant=lambda _: None)
        line = json.dumps(without_nan, ensure_ascii=False)
    stream.write(line.encode("utf-8") + b"\n")
