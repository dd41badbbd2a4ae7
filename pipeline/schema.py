"""The columns of a run's Parquet files: generations, errors and the manifest, each with its type and what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import NamedTuple

import pyarrow as pa

from pipeline.errors import ErrorRow


class Column(NamedTuple):
    """A column on disk. `help` says what it holds, for a reader of the file."""

    name: str
    type: pa.DataType
    help: str
    nullable: bool = True


TEXT = pa.string()  # the type of an id, unless the ids of the input are integers
_TOP_LOGPROB = pa.struct([("token_id", pa.int32()), ("logprob", pa.float32())])

GENERATION_COLUMNS = (
    Column(
        "row_id", pa.int64(), "Position of the row in the input: unit << 32 | row in the unit, from 0.", nullable=False
    ),
    Column("sample", pa.int32(), "Number of the sample, 0 to n - 1.", nullable=False),
    Column(
        "id",
        pa.string(),
        "The row's own id (`input.id_column`), as `int64` if the ids of the input are integers; null without one.",
    ),
    Column("prompt", pa.string(), "The prompt as text, as it was before tokenization: a chat is rendered."),
    Column("is_chat", pa.bool_(), "Whether the chat template rendered the prompt, special tokens included."),
    Column("text", pa.string(), "The output as text, without special tokens and without the stop string."),
    Column("token_ids", pa.list_(pa.int32()), "The output as token ids."),
    Column("finish_reason", pa.string(), "Why the output ended: `stop` or `length`."),
    Column("stop_reason", pa.string(), "The stop string or stop token id that ended the output; null without one."),
    Column("num_prompt_tokens", pa.int32(), "Tokens of the prompt."),
    Column(
        "num_cached_tokens",
        pa.int32(),
        "Prompt tokens whose keys and values were copied from another row instead of being computed.",
    ),
    Column("num_output_tokens", pa.int32(), "Tokens of the output."),
    Column("num_rounds", pa.int32(), "Forward passes of the target model for this sample."),
    Column("num_draft_tokens", pa.int32(), "Tokens that the drafter proposed."),
    Column("num_accepted_tokens", pa.int32(), "Drafted tokens that the target model accepted."),
    Column(
        "accepted_per_position",
        pa.list_(pa.int32()),
        "For each draft position, from the first, the number of rounds in which its token was accepted.",
    ),
    Column(
        "logprobs",
        pa.list_(pa.float32()),
        "Log-probability of each output token under the target's raw logits; null unless asked for.",
    ),
    Column(
        "top_logprobs",
        pa.list_(pa.list_(_TOP_LOGPROB)),
        "For each output token, the most probable tokens with their log-probabilities; null unless asked for.",
    ),
)

ERROR_COLUMNS = (
    Column("row_id", pa.int64(), "Position of the row in the input, as in `data/`.", nullable=False),
    Column("id", pa.string(), "The row's own id, of the type that it has in `data/`, if it was read; null otherwise."),
    Column("file", pa.string(), "The input file.", nullable=False),
    Column(
        "row_number",
        pa.int64(),
        "Number of the row in the file, from 0; blank lines and a CSV header do not count.",
        nullable=False,
    ),
    Column(
        "stage",
        pa.string(),
        "Where the row failed: `read`, `template`, `encode`, `params` or `generate`.",
        nullable=False,
    ),
    Column("error_type", pa.string(), "Name of the exception, such as `ValueError`.", nullable=False),
    Column("message", pa.string(), "What was wrong.", nullable=False),
    Column("attempt", pa.int32(), "How often `jobs.retry` has tried the row again in vain.", nullable=False),
)

MANIFEST_COLUMNS = (
    Column("unit_id", pa.int64(), "Number of the work unit, from 0.", nullable=False),
    Column("first_ordinal", pa.int64(), "Number of the unit's first row among all input rows.", nullable=False),
    Column("file", pa.string(), "The input file that the unit's rows are in.", nullable=False),
    Column("row_start", pa.int64(), "Number of the unit's first row in the file.", nullable=False),
    Column("num_rows", pa.int64(), "Rows of the unit.", nullable=False),
    Column("byte_start", pa.int64(), "First byte of the unit in a text file; null for Parquet."),
    Column("byte_end", pa.int64(), "First byte behind the unit in a text file; null for Parquet."),
    Column("estimated_tokens", pa.int64(), "Estimated prompt tokens, at four bytes a token.", nullable=False),
    Column("file_size", pa.int64(), "Bytes of the file when the run was planned.", nullable=False),
    Column("file_version", pa.string(), "The file's time of change when the run was planned, in ns.", nullable=False),
)


# The columns of each folder of a run; carried columns follow those of data/.
COLUMNS = {"data": GENERATION_COLUMNS, "errors": ERROR_COLUMNS, "manifest": MANIFEST_COLUMNS}


def _schema(described: Iterable[Column], id_type: pa.DataType = TEXT) -> pa.Schema:
    types = {"id": id_type}
    fields = (pa.field(each.name, types.get(each.name, each.type), nullable=each.nullable) for each in described)
    return pa.schema(fields)


MANIFEST = _schema(MANIFEST_COLUMNS)


def generations_schema(carried: Mapping[str, pa.DataType], id_type: pa.DataType = TEXT) -> pa.Schema:
    """Return the schema of `data/part-*.parquet`: Dray's own columns, then the carried ones.

    Raises ValueError if a carried column has the name of one of Dray's own.
    """
    own = _schema(GENERATION_COLUMNS, id_type)
    if taken := sorted(set(carried) & set(own.names)):
        raise ValueError(
            f"carried columns {taken} have names that the output uses itself "
            f"({', '.join(own.names)}); rename them in the input, or name only others in carry_columns"
        )
    return pa.schema([*own, *(pa.field(name, type_) for name, type_ in carried.items())])


def errors_schema(id_type: pa.DataType = TEXT) -> pa.Schema:
    """Return the schema of `errors/part-*.parquet`."""
    return _schema(ERROR_COLUMNS, id_type)


def errors_table(errors: Iterable[ErrorRow], id_type: pa.DataType = TEXT) -> pa.Table:
    """Return the error rows as a table with the schema of `errors_schema`."""
    return pa.Table.from_pylist([asdict(error) for error in errors], schema=errors_schema(id_type))
