"""Workers without models, to measure everything around an engine: the stream of units, the ledger, the commits."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from actors.units.worker import UnitWorker
from pipeline.counts import Counts
from pipeline.inputs.options import InputOptions
from pipeline.inputs.rows import InputRow
from pipeline.logs import LogSettings
from pipeline.run.commit import Receipt
from pipeline.streaming.stream import calls_in, outcomes_table


@dataclass(eq=False)
class SimulatedRow:
    """A row and the number of rounds that it still takes."""

    row: InputRow
    num_rounds: int
    is_done: asyncio.Event = field(default_factory=asyncio.Event)


class SimulatedEngine:
    """Slots and rounds; a round takes `round_s` seconds, however many rows run.

    While there is work, rounds follow each other by the clock: that sixty processes share two cores and wake up late is
    a trouble of the simulation, not of what it stands for. An engine that found nothing to do begins anew.
    """

    def __init__(self, num_slots: int, round_s: float) -> None:
        """Make an engine without rows."""
        self._num_slots, self._round_s = num_slots, round_s
        self._waiting: deque[SimulatedRow] = deque()
        self._pump: asyncio.Task[None] | None = None

    async def finish(self, rows: list[SimulatedRow]) -> None:
        """Return when all these rows have had their rounds."""
        self._waiting.extend(rows)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._run())
        for row in rows:
            await row.is_done.wait()

    async def _run(self) -> None:
        running: list[SimulatedRow] = []
        now = time.monotonic()
        while True:
            while self._waiting and len(running) < self._num_slots:
                running.append(self._waiting.popleft())
            if not running:
                return
            now += self._round_s
            await asyncio.sleep(max(0.0, now - time.monotonic()))
            for row in running:
                row.num_rounds -= 1
                if not row.num_rounds:
                    row.is_done.set()
            running = [row for row in running if row.num_rounds]


class SimulatedWorker(UnitWorker[SimulatedRow]):
    """A worker like Generator, over a SimulatedEngine: the same units, ledger and commits, other rows."""

    def __init__(
        self,
        run_path: str,
        input_options: InputOptions,
        carried: Mapping[str, pa.DataType],
        ledger: Any,
        num_slots: int,
        round_s: float,
        rounds_per_row: int,
    ) -> None:
        """Make a worker whose rows take `rounds_per_row` rounds each."""
        super().__init__(run_path, input_options, carried, ledger, LogSettings(level="warning"))
        self._rounds_per_row = rounds_per_row
        self._engine = SimulatedEngine(num_slots, round_s)
        self._join()

    def _encode(self, row: InputRow, ordinal: int) -> SimulatedRow:
        return SimulatedRow(row, self._rounds_per_row)

    async def _finish(self, rows: list[SimulatedRow]) -> None:
        await self._engine.finish(rows)

    def _decode(self, row: SimulatedRow) -> list[dict[str, Any]]:
        rounds = self._rounds_per_row
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


class EmptyWorker:
    """Takes units and does nothing with them: what is left is the cost of handing them out."""

    def __init__(self, ledger: Any) -> None:
        """Make a worker; `ledger` is the run's Ledger, an actor."""
        self._ledger = ledger
        ledger.join.remote("empty")

    async def __call__(self, batch: pa.Table) -> pa.Table:
        """Return an empty receipt for each unit; no part is written."""
        units = [call.unit for call in calls_in(batch)]
        for unit in units:
            await self._ledger.begin.remote(unit.unit_id, unit.num_rows, "empty", "node")
            await self._ledger.finish.remote(unit.unit_id)
        return outcomes_table(Receipt(unit.unit_id, Counts(num_rows=unit.num_rows), 0) for unit in units)
