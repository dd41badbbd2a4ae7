"""The Arrow schemas on disk: generations, errors and the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from pipeline.errors import ErrorRow

_OWN_FIELDS: list[pa.Field[Any]] = [
    pa.field("row_id", pa.int64(), nullable=False),  # unit_id << 32 | row in unit
    pa.field("sample", pa.int32(), nullable=False),  # 0 .. n - 1
    pa.field("id", pa.string()),  # the user's own id
    pa.field("prompt", pa.string()),  # as rendered, before tokenization
    pa.field("is_chat", pa.bool_()),  # rendered by a chat template: encoded without special tokens
    pa.field("text", pa.string()),
    pa.field("token_ids", pa.list_(pa.int32())),
    pa.field("finish_reason", pa.string()),
    pa.field("stop_reason", pa.string()),  # the stop string that matched, or the stop token's id
    pa.field("num_prompt_tokens", pa.int32()),
    pa.field("num_cached_tokens", pa.int32()),  # of the prompt: keys and values copied from another row, not computed
    pa.field("num_output_tokens", pa.int32()),
    pa.field("num_rounds", pa.int32()),
    pa.field("num_draft_tokens", pa.int32()),
    pa.field("num_accepted_tokens", pa.int32()),
    pa.field("accepted_per_position", pa.list_(pa.int32())),
    pa.field("logprobs", pa.list_(pa.float32())),  # of each output token
    pa.field(
        "top_logprobs",
        pa.list_(pa.list_(pa.struct([("token_id", pa.int32()), ("logprob", pa.float32())]))),
    ),
]
_OWN_COLUMNS = pa.schema(_OWN_FIELDS)

_ERROR_FIELDS: list[pa.Field[Any]] = [
    pa.field("row_id", pa.int64(), nullable=False),
    pa.field("id", pa.string()),
    pa.field("file", pa.string(), nullable=False),
    pa.field("row_number", pa.int64(), nullable=False),
    pa.field("stage", pa.string(), nullable=False),
    pa.field("error_type", pa.string(), nullable=False),
    pa.field("message", pa.string(), nullable=False),
    pa.field("attempt", pa.int32(), nullable=False),
]
ERRORS = pa.schema(_ERROR_FIELDS)

_MANIFEST_FIELDS: list[pa.Field[Any]] = [
    pa.field("unit_id", pa.int64(), nullable=False),
    pa.field("first_ordinal", pa.int64(), nullable=False),
    pa.field("file", pa.string(), nullable=False),
    pa.field("row_start", pa.int64(), nullable=False),
    pa.field("num_rows", pa.int64(), nullable=False),
    pa.field("byte_start", pa.int64()),  # null for Parquet, which is read by row number
    pa.field("byte_end", pa.int64()),
    pa.field("estimated_tokens", pa.int64(), nullable=False),
    pa.field("file_size", pa.int64(), nullable=False),
    pa.field("file_version", pa.string(), nullable=False),
]
MANIFEST = pa.schema(_MANIFEST_FIELDS)


def generations_schema(carried: Mapping[str, pa.DataType]) -> pa.Schema:
    """The schema of `data/part-*.parquet`: our columns, then the user's carried ones.

    Raises ValueError if a carried column has the name of one of ours.
    """
    taken = sorted(set(carried) & set(_OWN_COLUMNS.names))
    if taken:
        raise ValueError(
            f"carried columns {taken} have names that the output uses itself "
            f"({', '.join(_OWN_COLUMNS.names)}); rename them in the input or leave them out of carry_columns"
        )
    return pa.schema([*_OWN_COLUMNS, *(pa.field(name, type_) for name, type_ in carried.items())])


def errors_table(errors: Iterable[ErrorRow]) -> pa.Table:
    """The error rows as a table with the `ERRORS` schema."""
    return pa.Table.from_pylist([error.to_dict() for error in errors], schema=ERRORS)
