"""Rows of a run that are written again, with their texts as predictions, and the first place where each differs."""

import asyncio
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from actors.engine.translation import EncodedRow
from actors.engines.loading import LoadedEngine
from actors.rows.plain import PlainRows
from actors.units.worker import RowKind
from actors.workers.loose_rows import LooseRows
from decoding.common_prefix import common_prefix
from decoding.sequence import Sequence
from decoding.vocabulary.grammars import grammars_of
from pipeline.errors import ErrorRow, is_of_process
from pipeline.inputs.rows import InputRow
from pipeline.inputs.units import WorkUnit
from pipeline.run.commit import engine_of
from pipeline.run.earlier_rows import texts_of
from pipeline.run.row_sample import NO_ROWS
from pipeline.run.unit_rows import UnitRows, rows_with_id
from pipeline.schema import NOT_REPEATED, generations_table

if TYPE_CHECKING:  # it brings transformers' models, which a driver does not need
    from decoding.network.reference import Reference

_SAME_LOGPROB = 0.01  # as near as rounding brings the log-probabilities of the same token
_READ_AHEAD = 4  # rows for each slot of the engine
_MOST_SHOWN = 200  # characters of a value


@dataclass(frozen=True)
class RecordedRow:
    """A row of a run as it is recorded, and as its input has it. `ordinal` is its place in the whole input."""

    unit: WorkUnit
    row_id: int
    ordinal: int
    input: InputRow | ErrorRow
    generations: pa.Table
    error: Mapping[str, Any] | None

    @classmethod
    def of(cls, unit: WorkUnit, rows: UnitRows, read: InputRow | ErrorRow) -> "RecordedRow":
        """Return a row of a unit's rows."""
        table, failed = (rows_with_id(each, read.row_id) for each in (rows.generations, rows.errors))
        ordinal = unit.first_ordinal + unit.row_index(read.row_id)
        return cls(unit, read.row_id, ordinal, read, table, next(iter(failed.to_pylist()), None))

    @property
    def name(self) -> str:
        """The row's name for a reader."""
        own = self.input.user_id if isinstance(self.input, InputRow) else self.input.id
        return self.unit.row_name(self.row_id, own)

    @cached_property
    def texts(self) -> list[list[int]]:
        """The token ids of each sample."""
        return [list(token_ids or ()) for token_ids in self.generations["token_ids"].to_pylist()]

    @property
    def written_by(self) -> Mapping[str, Any]:
        """The engine that wrote it, as the footer of its part describes it."""
        return engine_of(self.generations.schema)

    @property
    def is_checkable(self) -> bool:
        """Whether it must come out again: not if its process failed over it."""
        return self.error is None or not is_of_process(self.error["message"])


@dataclass(frozen=True)
class Difference:
    """The first place where what is recorded of a row is not what the target writes."""

    row: str
    place: str  # such as "sample 0, token 17" (from 0), or the name of a column behind the sample
    recorded: str
    written: str
    margin: float | None = None  # of the better of the two tokens over the other, in logits; None: it was not asked for
    is_near_tie: bool = False  # whether another kind of processor may have decided otherwise

    def __str__(self) -> str:
        """Return it as a line."""
        margin = "" if self.margin is None else f" ({self.margin:.1e} logits apart)"
        return f"row {self.row}, {self.place}: {self.recorded} is recorded, the target writes {self.written}{margin}"


class ProcessFailure(Exception):
    """A row could not be written again here: memory ran out over it, or the target was lost."""


Compared = tuple[str, bool, Difference | None]  # a row's name, and whether it can be checked


@dataclass
class Again:
    """An engine in this process, and the rows that it writes again, once."""

    engine: LoadedEngine
    rows: RowKind  # of its run
    num_tokens: int = 0  # that were written

    async def compared(self, rows: Iterable[RecordedRow]) -> list[Compared]:
        """Write rows again; return what was found of each, in their order."""
        tasks: list[asyncio.Task[Compared]] = []
        free = asyncio.Semaphore(_READ_AHEAD * self.engine.loop.engine.options.slots)

        async def compare(row: RecordedRow) -> Compared:
            try:
                return row.name, row.is_checkable, await self._compare(row)
            except ProcessFailure:
                return row.name, False, None
            finally:
                free.release()

        for row in rows:
            await free.acquire()
            tasks.append(asyncio.create_task(compare(row)))
        return await asyncio.gather(*tasks)

    async def _compare(self, row: RecordedRow) -> Difference | None:
        earlier = texts_of(row.generations.to_pylist())
        assert isinstance(self.rows, PlainRows), "other rows are refused"
        plain = replace(self.rows, earlier=lambda _: earlier, recorded_rows=NO_ROWS)
        rows = LooseRows(plain)
        encoded = rows.encode(row.input, row.ordinal)
        if isinstance(encoded, EncodedRow):
            await plain.finish([encoded])
            self.num_tokens += sum(len(sequence.output_token_ids) for sequence in encoded.sequences)
        written = rows.decode(encoded, row.row_id)
        failed = written[0].get("error_stage")
        if failed and is_of_process(written[0]["error_message"]):
            raise ProcessFailure(written[0]["error_message"])
        was = outcome(None if row.error is None else row.error["stage"], row.generations.num_rows)
        now = outcome(failed, len(written))
        if was != now:
            why = f" ({written[0]['error_message']})" if failed else ""
            return Difference(row.name, "as a whole", was, now + why)
        if failed:
            old_text, new_text = (row.error or {}).get("text"), written[0].get("error_text")
            if old_text is None or old_text == new_text:  # a publication has no text of a row that failed
                return None
            return Difference(row.name, "the last text", f"{old_text!r:.200}", f"{new_text!r:.200}")
        assert isinstance(encoded, EncodedRow), "a row that was not encoded has failed"
        again = generations_table(written, row.generations.schema)
        for old, new, sequence in zip(row.generations.to_pylist(), again.to_pylist(), encoded.shown, strict=True):
            tokens = [list(each["token_ids"] or ()) for each in (old, new)]
            place, sample = common_prefix(*tokens), f"sample {old['sample']}"
            if place < max(map(len, tokens)):
                was, now = (self._token(each[place : place + 1]) for each in tokens)
                found = Difference(row.name, f"{sample}, token {place}", was, now)
                if self.is_of_one_kind(row.written_by) or place == min(map(len, tokens)):
                    return found
                return self._with_margin(found, sequence, place, tokens[0][place])
            if (name := _other_column(old, new)) is not None:
                was, now = (repr(each[name])[:_MOST_SHOWN] for each in (old, new))
                return Difference(row.name, f"{sample}, {name}", was, now)
        return None

    def is_of_one_kind(self, engine: Mapping[str, Any]) -> bool:
        """Tell whether an engine, as a footer describes it, rounds as the one here does."""
        return all(engine.get(name) == self.engine.footer[name] for name in ("device", "kernels"))

    def _token(self, token_ids: Seq[int]) -> str:
        """Return a token for a reader, with its id; of no token, that the text has ended."""
        if not token_ids:
            return "the end"
        if not 0 <= token_ids[0] < self.engine.loop.engine.vocab_size:
            return f"no token of the model ({token_ids[0]})"
        return f"{self.engine.codec.of_all_tokens.decode(token_ids)!r} ({token_ids[0]})"

    def _with_margin(self, found: Difference, sequence: Sequence, place: int, recorded: int) -> Difference:
        """Return the difference with how near a tie it is, by transformers' own code.

        A tie of other tokens than the recorded one excuses nothing.
        """
        if not 0 <= recorded < self.engine.loop.engine.vocab_size:
            return found
        before = replace(sequence, output_token_ids=sequence.output_token_ids[:place], prediction=(), matcher=None)
        written = sequence.output_token_ids[place]
        margin = max(self._reference.margin(replace(before), token) for token in (recorded, written))
        return replace(found, margin=margin, is_near_tie=margin <= self.engine.loop.engine.close_call)

    @cached_property
    def _reference(self) -> "Reference":
        from decoding.network.reference import Reference

        models, engine = self.engine.settings.models, self.engine.loop.engine
        grammars = grammars_of(models.tokenizer or models.target, engine.vocab_size, engine.eos_token_ids)
        return Reference.load(
            models.target, models.device, models.dtype, close_call=engine.close_call, grammars=grammars
        )


def outcome(failed: str | None, num_samples: int) -> str:
    """Return in words what became of a row: the stage at which it failed, or its texts."""
    if failed is not None:
        return f"an error at stage {failed!r}"
    return f"{num_samples} texts" if num_samples != 1 else "a text"


def _other_column(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return the first column whose value is another one; log-probabilities may differ by rounding."""
    for name in old:
        if name == "logprobs":
            pairs = list(zip(old[name] or (), new[name] or (), strict=False))
            lengths = [None if values is None else len(values) for values in (old[name], new[name])]
            if lengths[0] != lengths[1] or any(a is None or not abs(a - b) <= _SAME_LOGPROB for a, b in pairs):
                return name
        elif name == "top_logprobs":
            places = old[name] or (), new[name] or ()
            if len(places[0]) != len(places[1]) or not all(map(_is_same_top, *places)):
                return name
        elif name not in NOT_REPEATED and repr(old[name]) != repr(new[name]):
            return name
    return None


def _is_same_top(old: Seq[Mapping[str, Any]], new: Seq[Mapping[str, Any]]) -> bool:
    """Tell whether the likeliest tokens are the same, but for the last one, which rounding may have chosen."""
    tops = [{each["token_id"]: each["logprob"] for each in top} for top in (old, new)]
    return len(tops[0]) == len(tops[1]) and all(
        logprob <= other.get(token_id, min(other.values())) + _SAME_LOGPROB
        for one, other in (tops, tops[::-1])
        for token_id, logprob in one.items()
    )
