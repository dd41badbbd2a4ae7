"""Workers without models, to measure everything around an engine: the stream of units, the ledger, the commits."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from actors.units.unit_rows import WholeUnits
from actors.units.worker import RowKind, UnitWorker, open_run
from actors.units.workplace import Workplace
from pipeline.counts import Counts
from pipeline.inputs.options import InputOptions
from pipeline.inputs.rows import InputRow
from pipeline.logs import LogSettings
from pipeline.run.commit import Receipt
from pipeline.streaming.calls import packed, unpacked


@dataclass(frozen=True)
class SimulatedRow:
    """A row that needs no encoding."""

    row: InputRow


@dataclass
class SimulatedRows(RowKind):
    """Rows that take `rounds_per_row` rounds of `round_s` seconds each.

    All rows of a unit run at once, and units follow each other by the clock: that sixty processes share two cores and
    wake up late is a trouble of the simulation, not of what it stands for.
    """

    round_s: float
    rounds_per_row: int
    idle_from: float = 0.0

    def encode(self, row: InputRow, ordinal: int) -> SimulatedRow:
        """Return the row as it is."""
        return SimulatedRow(row)

    async def finish(self, rows: list[SimulatedRow]) -> None:
        """Return when the unit has had its rounds, after those of the units before it."""
        self.idle_from = max(self.idle_from, time.monotonic()) + self.rounds_per_row * self.round_s
        await asyncio.sleep(self.idle_from - time.monotonic())

    def decode(self, row: SimulatedRow) -> list[dict[str, Any]]:
        """Return its made-up generation."""
        rounds = self.rounds_per_row
        return [
            {
                "row_id": row.row.row_id,
                "sample": 0,
                "prompt": row.row.prompt,
                "text": "",
                "token_ids": [0] * rounds,
                "finish_reason": "length",
                "num_prompt_tokens": 1,
                "num_cached_tokens": 0,
                "num_output_tokens": rounds,
                "num_rounds": rounds,
                "num_draft_tokens": 0,
                "num_accepted_tokens": 0,
                "accepted_per_position": [],
            }
        ]


class SimulatedWorker(UnitWorker):
    """A worker like EngineWorker without an engine: the same units, ledger and commits, other rows."""

    def __init__(self, run_path: str, rows: SimulatedRows, ledger: Any) -> None:
        """Make a worker for the units of a run over JSON lines."""
        workplace = Workplace.of_run(run_path, LogSettings(level="warning"))
        super().__init__(open_run(run_path), rows, WholeUnits(InputOptions(format="jsonl"), {}), ledger, workplace)
        ledger.join.remote(workplace.process)


class EmptyWorker:
    """Takes units and does nothing with them: what is left is the cost of handing them out."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        ledger.join.remote("empty")

    async def __call__(self, batch: pa.Table) -> pa.Table:
        """Return an empty receipt for each unit; no part is written."""
        units = [call.unit for call in unpacked(batch)]
        for unit in units:
            await self._ledger.begin.remote(unit.unit_id, unit.num_rows, "empty", "node")
            await self._ledger.finish.remote(unit.unit_id)
        return packed(Receipt(unit.unit_id, Counts(num_rows=unit.num_rows), 0) for unit in units)
