"""Generator: an Engine in a Ray Data actor. Work units in, committed parts and receipts out."""

from typing import Any

import pyarrow as pa

from actors.programs.program_rows import ProgramRows
from actors.programs.settings import ProgramSettings
from actors.workers.engine_worker import EngineWorker
from actors.workers.row_kind import PlainRows, RowKind, row_ids_of
from pipeline.errors import ErrorRow
from pipeline.inputs.rows import InputRow
from pipeline.inputs.units import WorkUnit
from pipeline.run.commit import Receipt
from pipeline.run.row_sample import NO_ROWS, RowSample


class Generator(EngineWorker[Any]):
    """A worker that writes texts."""

    def __init__(
        self,
        *args: Any,
        program: ProgramSettings | None = None,
        recorded_rows: RowSample = NO_ROWS,
        **named: Any,
    ) -> None:
        """Load what an EngineWorker loads. With a `program` each row runs it; of `recorded_rows` rounds are kept."""
        self._program, self._recorded_rows = program, recorded_rows
        super().__init__(*args, **named)

    def _begin(self) -> None:
        self._rows: RowKind = PlainRows(self._settings, self._loop, self._codec, self._recorded_rows)
        if self._program is not None and self._program.function is not None:
            engine = (self._loop, self._codec, self._recorded_rows)
            self._rows = ProgramRows(self._program, self._settings, self._run_directory, *engine)

    def _encode(self, row: InputRow, ordinal: int) -> Any:
        return self._rows.encode(row, ordinal)

    async def _finish(self, rows: list[Any]) -> None:
        await self._rows.finish(rows)

    def _decode(self, row: Any) -> list[dict[str, Any]]:
        return self._rows.decode(row)

    def _write(self, unit: WorkUnit, table: pa.Table, errors: list[ErrorRow], attempt: int, seconds: float) -> Receipt:
        receipt = super()._write(unit, table, errors, attempt, seconds)
        self._rows.committed(unit.unit_id, row_ids_of(table))
        return receipt
