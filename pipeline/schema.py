"""The columns of a run's Parquet files: generations, errors and the manifest, each with its type and what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, NamedTuple, cast

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
    Column("finish_reason", pa.string(), "Why the output ended: `stop` or `length`; `scored` where it was given."),
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
    Column(
        "draft_version",
        pa.int32(),
        "Version of the draft in use when the sample ended; 0 for the one that the run began with.",
    ),
)

_ROUND = pa.struct([("num_accepted_tokens", pa.int32()), ("rejected_token_ids", pa.list_(pa.int32()))])
# Of a run that writes texts, behind the columns above. Runs that were begun before there was such a column go on as
# they are.
ROUND_COLUMNS = (
    Column(
        "draft_rounds",
        pa.list_(_ROUND),
        "For each round, drafted tokens that were accepted, and ids of those that were not; null for the samples whose "
        "rounds were not recorded (`output.rounds`).",
    ),
)

# Of a run that was begun with `run.reuse`, behind the columns above.
REUSE_COLUMNS = (
    Column("num_earlier_tokens", pa.int32(), "With `run.reuse`: tokens of the earlier text; null without one."),
    Column("num_unchanged_tokens", pa.int32(), "First tokens that are those of the earlier text."),
    Column("num_reused_tokens", pa.int32(), "Tokens that followed from the earlier text, behind changes, too."),
)

# Of a run that was begun with `run.validate`, behind the columns above; and in errors/.
TRY_COLUMNS = (Column("num_tries", pa.int32(), "With `run.validate`: texts that were written until this one passed."),)
TRY_ERROR_COLUMNS = (
    Column("text", pa.string(), "With `run.validate`: the last text of a row that it refused; null for other rows."),
    Column("num_tries", pa.int32(), "Texts that were written of the sample that it refused; null for other rows."),
)

_TURN = pa.struct([("prompt", TEXT), ("text", TEXT), ("finish_reason", TEXT), ("num_output_tokens", pa.int32())])
_TOOL_RESULT = pa.struct([("name", TEXT), ("arguments", TEXT), ("result", TEXT)])

# The columns of a run whose rows are programs, behind those above. `text` is what the program returned, or the text of
# its last turn; `prompt` is that of the first; tokens and counts are those of all turns.
PROGRAM_COLUMNS = (
    Column("num_turns", pa.int32(), "With `program.function`: generations of the sample."),
    Column(
        "turns",
        pa.list_(_TURN),
        "With `program.function`: the generations in their order; `token_ids` has their tokens one behind the other.",
    ),
    Column(
        "tool_results",
        pa.list_(_TOOL_RESULT),
        "With `program.function`: the calls of tools, with arguments and results as JSON text.",
    ),
    Column(
        "result",
        pa.string(),
        "With `program.function`: what the program returned, as JSON text; null for a string, which is `text`.",
    ),
)

SCORE_COLUMNS = (
    Column("candidate", pa.int32(), "Number of the scored text among the row's candidates or labels, from 0."),
    Column("logprob", pa.float64(), "Log-probability of the text: the sum of `logprobs`."),
    Column("perplexity", pa.float64(), "exp(-logprob / num_output_tokens); of many rows, that of the sums."),
    Column("is_greedy", pa.bool_(), "Whether each token is the most likely one at its place."),
    Column("probability", pa.float64(), "Share of exp(logprob) in its sum over the row's candidates or labels."),
    Column("is_best", pa.bool_(), "Whether it is the best of them by `score.best_by`; the first one of equal ones is."),
    Column(
        "candidate_logprobs",
        pa.list_(pa.float64()),
        "`logprob` of each of the row's candidates or labels; null unless `score.keep` is `best`.",
    ),
    Column(
        "candidate_probabilities",
        pa.list_(pa.float64()),
        "`probability` of each of the row's candidates or labels; null unless `score.keep` is `best`.",
    ),
)

_CALL = pa.struct([("id", pa.string()), ("name", pa.string()), ("arguments", pa.string())])
# Of a run that asks for the parts of its answers (`output.parts`), behind the columns above.
PART_COLUMNS = (
    Column(
        "content",
        pa.string(),
        "The answer's own text, without thought and calls, or null. With `output.parts` only, as the next two.",
    ),
    Column("reasoning", pa.string(), "What the model thought before it answered; null where it did not."),
    Column(
        "tool_calls",
        pa.list_(_CALL),
        "The calls of the answer, with their arguments as JSON text; null where it has none.",
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
        "Where the row failed: `read`, `template`, `encode`, `params`, `generate`, `program` or `validate`.",
        nullable=False,
    ),
    Column("error_type", pa.string(), "Name of the exception, such as `ValueError`.", nullable=False),
    Column("message", pa.string(), "What was wrong.", nullable=False),
    Column("attempt", pa.int32(), "How often `dray retry` has tried the row again in vain.", nullable=False),
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
COLUMNS = {
    "data": (*GENERATION_COLUMNS, *ROUND_COLUMNS, *REUSE_COLUMNS, *TRY_COLUMNS, *PART_COLUMNS, *PROGRAM_COLUMNS),
    "scores": SCORE_COLUMNS,
    "errors": (*ERROR_COLUMNS, *TRY_ERROR_COLUMNS),
    "manifest": MANIFEST_COLUMNS,
}
# Columns that follow from drafts, batches and rounding, too: a row that is written again may have other values there.
NOT_REPEATED = frozenset(
    {"num_cached_tokens", "num_rounds", "num_draft_tokens", "num_accepted_tokens", "accepted_per_position"}
    | {"logprobs", "top_logprobs", "draft_version", "draft_rounds"}
    | {column.name for column in REUSE_COLUMNS}
)
ColumnSet = Literal["rounds", "reuse", "tries", "parts", "turns", "scores"]
OPTIONAL_COLUMNS: Mapping[ColumnSet, tuple[Column, ...]] = {
    "rounds": ROUND_COLUMNS,
    "reuse": REUSE_COLUMNS,
    "tries": TRY_COLUMNS,
    "parts": PART_COLUMNS,
    "turns": PROGRAM_COLUMNS,
    "scores": SCORE_COLUMNS,
}


def _schema(described: Iterable[Column], id_type: pa.DataType = TEXT) -> pa.Schema:
    types = {"id": id_type}
    fields = (pa.field(each.name, types.get(each.name, each.type), nullable=each.nullable) for each in described)
    return pa.schema(fields)


MANIFEST = _schema(MANIFEST_COLUMNS)


def generations_schema(
    carried: Mapping[str, pa.DataType],
    id_type: pa.DataType = TEXT,
    column_sets: Iterable[ColumnSet] = (),
    *,
    has_draft_version: bool = True,
) -> pa.Schema:
    """Return the schema of `data/part-*.parquet`: Dray's own columns, then the carried ones.

    `column_sets` names the optional ones that the run has. Runs that were begun before there was a column
    `draft_version` go on without it. Raises ValueError if a carried column has the name of one of Dray's own.
    """
    columns = [each for each in GENERATION_COLUMNS if has_draft_version or each.name != "draft_version"]
    own = _schema([*columns, *(column for name in column_sets for column in OPTIONAL_COLUMNS[name])], id_type)
    if taken := sorted(set(carried) & set(own.names)):
        raise ValueError(
            f"carried columns {taken} have names that the output uses itself "
            f"({', '.join(own.names)}); rename them in the input, or name only others in carry_columns"
        )
    return pa.schema([*own, *(pa.field(name, type_) for name, type_ in carried.items())])


def generations_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return the generation rows as a table. A value may be an Arrow array of one, which is taken as it is."""
    return pa.table([_column([row.get(field.name) for row in rows], field.type) for field in schema], schema=schema)


def _column(values: list[Any], type_: pa.DataType) -> pa.Array[Any]:
    if not any(isinstance(value, pa.Array) for value in values):
        return pa.array(values, type_)
    nothing: Any = pa.nulls(1, cast(Any, type_))
    return pa.concat_arrays([nothing if value is None else value for value in values])


def checked_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of data/ that a check of texts may read: those that follow from the texts alone."""
    hidden = {*NOT_REPEATED, *(column.name for column in TRY_COLUMNS)}
    return pa.schema([field for field in schema if field.name not in hidden])


def errors_schema(id_type: pa.DataType = TEXT, column_sets: Iterable[ColumnSet] = ()) -> pa.Schema:
    """Return the schema of `errors/part-*.parquet`."""
    return _schema([*ERROR_COLUMNS, *(TRY_ERROR_COLUMNS if "tries" in column_sets else ())], id_type)


def errors_table(
    errors: Iterable[ErrorRow], id_type: pa.DataType = TEXT, column_sets: Iterable[ColumnSet] = ()
) -> pa.Table:
    """Return the error rows as a table with the schema of `errors_schema`."""
    return pa.Table.from_pylist([asdict(error) for error in errors], schema=errors_schema(id_type, column_sets))
