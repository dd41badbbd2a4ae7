"""RowKind: what a Generator does with a row, from the input to the output's columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa

from actors.engine.bad_words import with_bad_word_ids
from actors.engine.loop import EngineLoop
from actors.engine.translation import EncodedRow, decode_row, encode_row
from actors.engine.vocabulary import check_row
from actors.settings import GeneratorSettings
from pipeline.inputs.rows import InputRow
from pipeline.run.row_sample import NO_ROWS, RowSample
from pipeline.text.codec import TextCodec


def row_ids_of(table: pa.Table) -> set[int]:
    """Return the ids of the rows that are in a table of generations."""
    return {row_id for row_id in table["row_id"].to_pylist() if row_id is not None}


class RowKind(Protocol):
    """Rows of one kind: those of `encode` are given to `finish` and `decode`. `UnitWorker` has the same methods."""

    def encode(self, row: InputRow, ordinal: int) -> Any:
        """Return the row ready to run. Raises RowError."""

    async def finish(self, rows: list[Any]) -> None:
        """Return when these rows have run."""

    def decode(self, row: Any) -> list[dict[str, Any]]:
        """Return the generation rows of a row that has run. Raises RowError."""

    def committed(self, unit_id: int, row_ids: set[int]) -> None:
        """Learn that these rows are in the unit's part."""


@dataclass(frozen=True)
class PlainRows:
    """Rows that are one prompt with its samples."""

    settings: GeneratorSettings
    loop: EngineLoop
    codec: TextCodec
    recorded_rows: RowSample = NO_ROWS  # whose rounds are kept

    def encode(self, row: InputRow, ordinal: int) -> EncodedRow:
        """Return the row as sequences. Raises RowError."""
        encoded = encode_row(row, ordinal, self.codec, self._settings_in_ids)
        check_row(row, encoded.sequences[0].params, self.loop.engine.vocab_size)
        if ordinal in self.recorded_rows:
            for sequence in encoded.sequences:
                sequence.rounds = []
        return encoded

    async def finish(self, rows: list[EncodedRow]) -> None:
        """Return when all sequences of these rows are finished."""
        await self.loop.finish([sequence for row in rows for sequence in row.sequences])

    def decode(self, row: EncodedRow) -> list[dict[str, Any]]:
        """Return a generation row for each sequence. Raises RowError if one of them failed."""
        return decode_row(row, self.codec)

    def committed(self, unit_id: int, row_ids: set[int]) -> None:
        """Do nothing: nothing was kept."""

    @cached_property
    def _settings_in_ids(self) -> GeneratorSettings:
        """The settings with token ids for the texts of bad words, and the engine's context: the same for all rows."""
        sampling = with_bad_word_ids(self.settings.sampling, self.codec)
        return replace(self.settings.with_context(self.loop.engine.max_model_len), sampling=sampling)
