"""Rows that belong to no run: each becomes its generations, or one output row that says what was wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from actors.engine.translation import EncodedRow
from actors.rows.plain import PlainRows
from pipeline.errors import ErrorRow
from pipeline.inputs.rows import InputRow, result_or_error
from pipeline.schema import TEXT, generations_schema

_ERROR_FIELDS = [pa.field("error_stage", pa.string()), pa.field("error_message", pa.string())]


def loose_schema(carried: Mapping[str, pa.DataType], id_type: pa.DataType = TEXT) -> pa.Schema:
    """Return the columns of `data/part-*.parquet` with the parts of answers, then error_stage and error_message.

    Raises ValueError if a carried column has the name of another one.
    """
    if taken := sorted({field.name for field in _ERROR_FIELDS} & set(carried)):
        raise ValueError(f"carried columns {taken} have names that the output uses itself; rename them in the input")
    own = generations_schema(carried, id_type, ["parts"])
    return pa.schema([*(field.with_nullable(True) for field in own), *_ERROR_FIELDS])


@dataclass(frozen=True)
class LooseRows:
    """What an engine does with such rows. `decode` gives them the `row_id` that the caller has for them."""

    rows: PlainRows

    def encode(self, row: InputRow | ErrorRow, ordinal: int) -> EncodedRow | ErrorRow:
        """Return the row ready to be written, or its error. `ordinal` decides its noise."""
        return row if isinstance(row, ErrorRow) else result_or_error("encode", row, "", self.rows.encode, row, ordinal)

    def decode(self, row: EncodedRow | ErrorRow, row_id: int | None) -> list[dict[str, Any]]:
        """Return the output rows of a row that was written: one for each sample, or one with its error."""
        decoded = row if isinstance(row, ErrorRow) else result_or_error("generate", row.row, "", self.rows.decode, row)
        if isinstance(decoded, ErrorRow):
            error = {"error_stage": decoded.stage, "error_message": decoded.message, "error_text": decoded.text}
            return [{"row_id": row_id, "id": decoded.id, **error}]
        return [{**generation, "row_id": row_id} for generation in decoded]
