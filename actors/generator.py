"""Generator: an Engine in a Ray Data actor. Work units in, committed parts and receipts out."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import ray

from actors.engine_facts import footer_facts
from actors.engine_loop import EngineLoop
from actors.ledger import Attempt, Group
from actors.reporter import Reporter
from actors.settings import GeneratorSettings
from actors.translation import EncodedRow, decode_row, encode_row, only_this_row
from actors.turnstile import Turnstile
from decoding.engine import Engine
from pipeline.commit import commit_part, read_receipt
from pipeline.counts import count_generations
from pipeline.errors import ErrorRow, RowError
from pipeline.input_options import InputOptions
from pipeline.inputs import InputRow, RowPlace, read_unit
from pipeline.location import Location
from pipeline.logs import LogSettings
from pipeline.receipt import Receipt
from pipeline.run_directory import RunDirectory
from pipeline.schema import errors_table, generations_schema
from pipeline.text import TextCodec
from pipeline.units import WorkUnit

_CONDEMNED = (
    "the process that ran this row alone died, twice; out of memory, or a fault in a kernel that this row sets off"
)
_RECEIPTS = pa.schema([("receipt", pa.string()), ("failure", pa.string())])


def describe(error: BaseException) -> str:
    """An exception for a person: a ValueError is its message, anything else also its type."""
    if isinstance(error, ray.exceptions.RayTaskError):  # what an actor raised, wrapped in a traceback
        error = error.cause
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def load_codec(settings: GeneratorSettings) -> TextCodec:
    """The tokenizer and chat template of these settings, or a ValueError saying what is wrong with them."""
    models, chat = settings.models, settings.chat
    return TextCodec.load(
        models.tokenizer or models.target,
        chat_template=chat.chat_template,
        system_prompt=chat.system_prompt,
        template_kwargs=chat.template_kwargs,
        template_columns=chat.template_columns,
    )


def load_engine(settings: GeneratorSettings) -> Engine:
    """The engine of these settings, models loaded and probed, or a ValueError saying why it cannot run."""
    models = settings.models
    return Engine.load(models.target, models.draft, settings.engine, device=models.device, dtype=models.dtype)


class Generator:
    """A Ray Data worker: each call is one unit, several calls share the engine."""

    def __init__(
        self,
        settings: GeneratorSettings,
        run_path: str,
        input_options: InputOptions,
        carried: Mapping[str, pa.DataType],
        ledger: Any,
        hang_timeout_s: float,
        log_settings: LogSettings,
    ) -> None:
        """Load the models once; the units come later. `ledger` is the run's Ledger, an actor."""
        started = time.monotonic()
        self._reporter = Reporter(run_path, log_settings)
        self._settings = settings
        self._ledger = ledger
        self._process = uuid.uuid4().hex
        self._turnstile = Turnstile()
        self._run_directory = RunDirectory.open(run_path)
        self._input_options = input_options
        self._carried = carried
        self._schema = generations_schema(carried)
        self._failure: str | None = None
        try:
            self._codec = load_codec(settings)
            self._loop = EngineLoop(load_engine(settings), hang_timeout_s)
            self._reporter.loaded(self._loop, settings.models, time.monotonic() - started)
        except Exception as error:  # noqa: BLE001 - the first unit reports it: Ray Data would wrap it beyond reading
            self._failure = describe(error)
            self._reporter.not_loaded(self._failure)

    async def __call__(self, batch: pa.Table) -> pa.Table:
        """Receipts (JSON texts) or failures (messages) for a table of units (JSON texts)."""
        rows = [await self._receipt_or_failure(str(text)) for text in batch["unit"].to_pylist()]
        return pa.Table.from_pylist(rows, schema=_RECEIPTS)

    async def _receipt_or_failure(self, unit_text: str) -> dict[str, str | None]:
        if self._failure is not None:
            return {"receipt": None, "failure": self._failure}
        unit = WorkUnit.from_dict(json.loads(unit_text))
        try:
            receipt = await self._generate_unit(unit)
        except Exception as error:  # noqa: BLE001 - handed to the driver, which stops the run with it
            self._reporter.unit_failed(unit, error)
            return {"receipt": None, "failure": f"unit {unit.unit_id} of {unit.file}: {describe(error)}"}
        return {"receipt": None if receipt is None else json.dumps(receipt.to_dict()), "failure": None}

    async def _generate_unit(self, unit: WorkUnit) -> Receipt | None:
        """The unit's receipt; None if the run is stopping and the unit was not begun."""
        try:
            return await asyncio.to_thread(read_receipt, self._run_directory, unit.unit_id)
        except FileNotFoundError:
            pass  # not committed yet: the usual case
        node = ray.get_runtime_context().get_node_id()
        attempt: Attempt | None = await self._ledger.begin.remote(unit.unit_id, unit.num_rows, self._process, node)
        if attempt is None:
            return None
        self._reporter.begun(unit, attempt)
        started = time.monotonic()
        async with self._turnstile.alone() if attempt.is_careful else self._turnstile.together():
            rows, errors = await asyncio.to_thread(self._read, unit)
            if attempt.is_careful:
                rows, condemned = await self._finish_carefully(unit, rows)
                errors += condemned
            else:
                await self._finish(rows)
            receipt = await asyncio.to_thread(self._commit, unit, rows, errors, attempt.number, started)
        self._reporter.committed(receipt, errors)
        await self._ledger.finish.remote(unit.unit_id)
        return receipt

    async def _finish(self, rows: list[EncodedRow]) -> None:
        await self._loop.finish([sequence for row in rows for sequence in row.sequences])

    async def _finish_carefully(
        self, unit: WorkUnit, rows: list[EncodedRow]
    ) -> tuple[list[EncodedRow], list[ErrorRow]]:
        """A few rows at a time, with the ledger's leave; those that came through, and errors for the condemned."""
        by_index = {unit.row_index(row.row.row_id): row for row in rows}
        unfinished = dict(by_index)
        while True:
            group: Group = await self._ledger.next_group.remote(unit.unit_id)
            if not group.rows:
                break
            await self._finish([unfinished.pop(index) for index in group.rows if index in unfinished])
        condemned = [by_index[index] for index in group.condemned if index in by_index]
        await self._finish([row for index, row in unfinished.items() if index not in group.condemned])
        error = RowError("generate", _CONDEMNED, "WorkerDied")
        return (
            [row for index, row in by_index.items() if index not in group.condemned],
            [self._dead_letter(unit, row.row, error) for row in condemned],
        )

    def _read(self, unit: WorkUnit) -> tuple[list[EncodedRow], list[ErrorRow]]:
        """Every row of the unit, encoded or as an error."""
        rows: list[EncodedRow] = []
        errors: list[ErrorRow] = []
        for index, row in enumerate(self._read_rows(unit)):
            if isinstance(row, ErrorRow):
                self._reporter.row_failed(row, None)
                errors.append(row)
                continue
            try:
                with only_this_row("encode"):
                    rows.append(encode_row(row, unit.first_ordinal + index, self._codec, self._settings))
            except RowError as error:
                errors.append(self._dead_letter(unit, row, error))
        return rows, errors

    def _read_rows(self, unit: WorkUnit) -> list[InputRow | ErrorRow]:
        """The unit's rows; read again from the start where the storage failed midway by something that can pass."""
        source = Location.parse(unit.file)
        return source.retrying("reading", lambda: list(read_unit(unit, self._input_options, self._carried)))

    def _commit(
        self, unit: WorkUnit, rows: list[EncodedRow], errors: list[ErrorRow], attempt: int, started: float
    ) -> Receipt:
        """Write what came out of every row, whole or not at all."""
        generations = []
        for encoded in rows:
            try:
                with only_this_row("generate"):
                    generations += decode_row(encoded, self._codec)
            except RowError as error:
                errors.append(self._dead_letter(unit, encoded.row, error))
        table = pa.Table.from_pylist(generations, schema=self._schema)
        errors.sort(key=lambda error: error.row_id)
        return commit_part(
            self._run_directory,
            unit,
            table,
            errors_table(errors),
            count_generations(table, len(errors)),
            attempt=attempt,
            seconds=time.monotonic() - started,
            engine=footer_facts(self._loop.engine),
        )

    def _dead_letter(self, unit: WorkUnit, row: InputRow, error: RowError) -> ErrorRow:
        dead = RowPlace(row.row_id, unit.file, row.row_number).error(error, row.user_id)
        self._reporter.row_failed(dead, row)
        return dead
