"""RetryGenerator and RetryScorer: workers that run the failed rows of committed units again, and nothing else."""

from typing import Any

import pyarrow as pa

from actors.units.worker import UnitWorker
from actors.workers.generator import Generator
from actors.workers.row_kind import row_ids_of
from actors.workers.text_scorer import TextScorer
from pipeline.counts import Counts
from pipeline.errors import ErrorRow
from pipeline.inputs.rows import InputRow
from pipeline.inputs.units import WorkUnit
from pipeline.run.amend import amend_part
from pipeline.run.commit import Receipt
from pipeline.run.dead_letters import Wanted
from pipeline.run.unit_rows import read_unit_rows


class _Retries(UnitWorker[Any]):
    """A Ray Data worker: each call is one committed unit, whose failed rows it tries again.

    A row's noise comes from its place in the input, so it gets the tokens that it would have had the first time. The
    receipt counts the rows that were tried again, not the whole unit.
    """

    def __init__(self, *args: Any, wanted: Wanted, **named: Any) -> None:
        """Load what the other worker loads. `wanted` selects the failed rows to try."""
        super().__init__(*args, **named)
        self._wanted = wanted

    async def _committed(self, unit: WorkUnit) -> Receipt | None:
        """Return an empty receipt if another attempt has tried the rows: its own receipt counts them, or was lost."""
        if await self._ledger.is_finished.remote(unit.unit_id):
            return Receipt(unit.unit_id, Counts(), attempt=0, already_committed=True)
        return None

    def _read_rows(self, unit: WorkUnit) -> list[InputRow | ErrorRow]:
        """Return the wanted failed rows that are not in the unit's part: a retry that died may have left some."""
        errors = read_unit_rows(self._run_directory, unit).errors.to_pylist()
        row_ids = {error["row_id"] for error in errors if self._wanted.takes(error)}
        return [row for row in super()._read_rows(unit) if row.row_id in row_ids] if row_ids else []

    def _write(self, unit: WorkUnit, table: pa.Table, errors: list[ErrorRow], attempt: int, seconds: float) -> Receipt:
        """Move the rows that succeeded from the unit's error rows to its part."""
        receipt = amend_part(self._run_directory, unit, table, errors, seconds, self._facts())
        self._committed_again(unit, row_ids_of(table))
        return receipt

    def _committed_again(self, unit: WorkUnit, row_ids: set[int]) -> None:
        """Learn that these rows, which succeeded now, are in the unit's part."""


class RetryGenerator(_Retries, Generator):
    """A Generator of failed rows."""

    def _committed_again(self, unit: WorkUnit, row_ids: set[int]) -> None:
        self._rows.committed(unit.unit_id, row_ids)


class RetryScorer(_Retries, TextScorer):
    """A TextScorer of failed rows."""
