"""PlainRows: rows that are one prompt with its samples."""

from collections.abc import Awaitable, Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from actors.engine.translation import EncodedRow, decode_row, encode_row
from actors.engine.vocabulary import check_row, with_bad_word_ids
from actors.settings import GeneratorSettings
from actors.units.worker import RowKind
from decoding.engine.token_engine import Limits, TokenEngine
from decoding.scope import ONE_FOR_ALL, Scope
from decoding.sequence import Sequence
from pipeline.inputs.rows import InputRow
from pipeline.run.earlier_rows import EarlierText
from pipeline.run.row_sample import NO_ROWS, RowSample
from pipeline.text.codec import TextCodec

EarlierTexts = Callable[[InputRow], Seq[EarlierText]]  # of each sample of a row, as it was written before


def _no_texts(row: InputRow) -> Seq[EarlierText]:
    return ()


@dataclass(frozen=True)
class PlainRows(RowKind):
    """Rows that are one prompt with its samples, which `write` lets the engine write."""

    settings: GeneratorSettings
    engine: TokenEngine | Limits
    codec: TextCodec
    write: Callable[[list[Sequence]], Awaitable[None]]
    recorded_rows: RowSample = NO_ROWS
    scope: Scope = ONE_FOR_ALL
    earlier: EarlierTexts = _no_texts

    def encode(self, row: InputRow, ordinal: int) -> EncodedRow:
        encoded = encode_row(row, ordinal, self.codec, self._settings_in_ids, self.scope)
        check_row(row, encoded.sequences[0].params, self.engine.vocab_size)
        if ordinal in self.recorded_rows:
            for sequence in encoded.sequences:
                sequence.rounds = []
        if encoded.params is None:  # else it is not known of which samples these are the best
            encoded.earlier.extend(self.earlier(row))
        for sequence in encoded.sequences:
            sequence.prediction = self._prediction(encoded, sequence.sample)
        return encoded

    def _prediction(self, encoded: EncodedRow, sample: int, attempt: int = 0) -> tuple[int, ...]:
        """Return the earlier text of an attempt at a sample: noise is an attempt's own, so no other one predicts it."""
        texts = [each for each in encoded.earlier[sample : sample + 1] if each.attempt == attempt]
        ids = texts[0].token_ids if texts else ()
        return tuple(ids) if min(ids, default=0) >= 0 and max(ids, default=0) < self.engine.vocab_size else ()

    async def finish(self, rows: list[EncodedRow]) -> None:
        await self.write([sequence for row in rows for sequence in row.sequences])

    def decode(self, row: EncodedRow) -> list[dict[str, Any]]:
        """Return a generation row for each sequence. Raises RowError if one of them failed."""
        return decode_row(row, self.codec)

    @cached_property
    def _settings_in_ids(self) -> GeneratorSettings:
        """The settings with token ids for the texts of bad words, and the engine's context: the same for all rows."""
        sampling = with_bad_word_ids(self.settings.sampling, self.codec)
        engine = replace(self.settings.engine, max_model_len=self.engine.max_model_len)
        return replace(self.settings, engine=engine, sampling=sampling)
