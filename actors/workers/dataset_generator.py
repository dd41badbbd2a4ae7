"""The generator inside a Ray Data pipeline of the user's own: rows in, generation rows out, no files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from actors.drafts.roster import start_roster
from actors.engine.loop import HANG_TIMEOUT_S
from actors.engine.translation import EncodedRow
from actors.engines import backend_of
from actors.engines.loading import LoadedEngine, publish_engine
from actors.metrics import Metrics
from actors.rows.plain import PlainRows
from actors.settings import GeneratorSettings
from actors.workers.loose_rows import LooseRows, loose_schema
from pipeline.counts import COUNTED_COLUMNS, count_generations
from pipeline.errors import ErrorRow, RowError
from pipeline.inputs.options import InputOptions, settle_prompts
from pipeline.inputs.records import Columns, to_rows
from pipeline.inputs.rows import InputRow, RowPosition, read_row, used_columns
from pipeline.logs import LogSettings
from pipeline.schema import generations_table
from pipeline.streaming.pool import ActorPool

if TYPE_CHECKING:
    from ray.data import Dataset  # only its name: its import takes seconds

_RUN = "dataset"  # the tag "run" of its metrics: it has no output of its own to be named after


def generate(
    dataset: Dataset,
    settings: GeneratorSettings,
    *,
    input_options: InputOptions | None = None,
    pool: ActorPool | None = None,
    rows_per_batch: int = 64,
) -> Dataset:
    """Return the generations of a dataset's rows, with the columns of `loose_schema`.

    Each input row comes out as its n samples, or as one row with an error. Nothing is written and nothing can be
    resumed: a crash repeats what Ray Data repeats, up to everything, and row_id is null. A dataset has no fixed
    order, so a row's noise comes from its id (`input_options.id_column`), or from its prompt where it has none: rows
    with equal prompts and no id get equal text.
    """
    options = input_options or InputOptions()
    if options.format not in ("auto", "parquet"):
        raise ValueError(
            f"input_options.format is {options.format!r}, but a dataset has been read already; leave it out"
        )
    backend_of(settings).check()
    pool = pool or ActorPool()
    if settings.chat.moment is None:
        settings = replace(settings, chat=replace(settings.chat, moment=datetime.now().isoformat()))
    arguments: dict[str, Any] = {"settings": settings, "input_options": options}
    if settings.has_draft_actors:
        arguments["roster"] = start_roster(settings, _RUN, LogSettings(), pool.num_at_once)
    return dataset.map_batches(
        DatasetGenerator, batch_size=rows_per_batch, fn_constructor_kwargs=arguments, **pool.map_options
    )


class DatasetGenerator:
    """A Ray Data worker over batches of rows; several batches share the engine."""

    def __init__(self, settings: GeneratorSettings, input_options: InputOptions, roster: Any = None) -> None:
        """Load the models once. `roster` is the actor of a DraftRoster under placement "split"."""
        self._engine = LoadedEngine(settings, roster, HANG_TIMEOUT_S)
        options = replace(input_options, template_columns=tuple(settings.chat.template_columns.values()))
        self._options, _ = settle_prompts(options, self._engine.codec.template_marks)
        loop = self._engine.loop
        self._rows = LooseRows(PlainRows(settings, loop.engine, self._engine.codec, loop.finish))
        self._metrics = Metrics(_RUN)
        self._heartbeat = publish_engine(self._metrics, loop, self._engine.links)
        self._heartbeat.start()

    async def __call__(self, batch: pa.Table) -> pa.Table:
        """Return the generation rows and error rows of a table of input rows."""
        names = self._options.carried_of(batch.column_names)
        missing = sorted(set(names) - set(batch.column_names))
        if missing:
            raise ValueError(
                f"carry_columns {missing} are not in the dataset, which has {', '.join(batch.column_names)}"
            )
        carried = {name: batch.schema.field(name).type for name in names}
        wanted = {*used_columns(self._options), *carried}
        read = batch.select([name for name in batch.column_names if name in wanted])
        rows = [self._encode(record, carried) for record in to_rows(read)]
        await self._rows.rows.finish([row for row in rows if isinstance(row, EncodedRow)])
        table = generations_table([out for row in rows for out in self._rows.decode(row, None)], loose_schema(carried))
        self._count(table)
        return table

    def _count(self, table: pa.Table) -> None:
        own = table.select([*COUNTED_COLUMNS, "error_stage"])  # a filter does not take columns of every type
        good = own.filter(pc.field("error_stage").is_null())
        stages = Counter(stage for stage in table["error_stage"].to_pylist() if stage is not None)
        self._metrics.add_rows(count_generations(good, stages.total()), stages)
        self._heartbeat.beat()

    def _encode(self, record: Columns | RowError, carried: Mapping[str, pa.DataType]) -> EncodedRow | ErrorRow:
        row = read_row(record, RowPosition(row_id=0, file="", row_number=0), self._options, carried)
        return self._rows.encode(row, 0 if isinstance(row, ErrorRow) else _stable_ordinal(row))


def _stable_ordinal(row: InputRow) -> int:
    name = repr(row.user_id if row.user_id is not None else (row.prompt, row.messages))
    return int.from_bytes(blake2b(name.encode(), digest_size=7).digest(), "big")
