"""ValidRows: rows of which each sample is written again, with noise of its own, until it passes a check."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from actors.engine.loop import estimated_length
from actors.engine.translation import EncodedRow, generation_row
from actors.rows.check import TextCheck
from actors.rows.plain import PlainRows
from decoding.sequence import Sequence
from pipeline.errors import RowError, storable
from pipeline.inputs.rows import InputRow


@dataclass(frozen=True, kw_only=True)
class ValidRows(PlainRows):
    """Such rows. A try is a function of weights, prompt, seed, row, sample and its number, whatever runs beside it."""

    check: TextCheck
    max_tries: int
    # Checks are code of the user: they run one at a time, and the engine's event loop does not wait for them.
    thread: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "validate"))

    def encode(self, row: InputRow, ordinal: int) -> EncodedRow:
        encoded = super().encode(row, ordinal)
        if encoded.params is not None:
            raise RowError("params", "body.best_of: run.validate checks all samples that are drawn; leave it out")
        return encoded

    async def finish(self, rows: list[EncodedRow]) -> None:
        samples = [(row, sample) for row in rows for sample in range(len(row.sequences))]
        # As the engine sorts those that come to it together.
        samples.sort(key=lambda pair: estimated_length(pair[0].sequences[pair[1]]), reverse=True)
        tries = [asyncio.ensure_future(self._until_valid(*pair)) for pair in samples]
        try:
            await asyncio.gather(*tries)
        finally:
            for each in tries:
                each.cancel()
            await asyncio.gather(*tries, return_exceptions=True)

    async def _until_valid(self, row: EncodedRow, sample: int) -> None:
        loop = asyncio.get_running_loop()
        for attempt in range(self.max_tries):
            if attempt:
                row.sequences[sample] = self._again(row, sample, attempt)
            sequence = row.sequences[sample]
            await self.write([sequence])
            if sequence.finish_reason == "error":
                return  # the row's own failure, which `decode` tells
            error = await loop.run_in_executor(self.thread, self._error_of, row, sequence, attempt + 1)
            if error is None or error.kind != "NotValid" or sequence.params.is_greedy:
                break
        row.found[sample] = attempt + 1, error

    def _again(self, row: EncodedRow, sample: int, attempt: int) -> Sequence:
        sequence = row.make(sample=sample, attempt=attempt)
        sequence.rounds = None if row.sequences[sample].rounds is None else []
        sequence.prediction = self._prediction(row, sample, attempt)
        return sequence

    def _error_of(self, row: EncodedRow, sequence: Sequence, num_tries: int) -> RowError | None:
        """Return why a text is refused, or cannot be checked; None if it passes."""
        generation, of_sample = generation_row(row, sequence.sample, sequence, self.codec), ""
        kept: dict[str, Any] = {"text": storable(generation["text"]), "num_tries": num_tries}
        if len(row.sequences) > 1:
            of_sample = f"sample {sequence.sample}: "
        try:
            problem = self.check.problem(generation)
        except RowError as error:
            return RowError("validate", f"{of_sample}{error.message}", error.kind, **kept)
        if problem is None:
            return None
        tries = "its one try is" if num_tries == 1 else f"none of its {num_tries} tries is"
        return RowError("validate", f"{of_sample}{tries} valid, the last one: {problem}", "NotValid", **kept)

    def decode(self, row: EncodedRow) -> list[dict[str, Any]]:
        """Return a generation row for each sample. Raises RowError for the first that failed, or was never valid."""
        generations = super().decode(row)
        for sample in range(len(row.sequences)):
            if (error := row.found[sample][1]) is not None:
                raise error
        return [{**each, "num_tries": row.found[sample][0]} for sample, each in enumerate(generations)]
