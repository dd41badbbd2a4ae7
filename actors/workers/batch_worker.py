"""BatchWorker: units of one batch, done by an engine that also answers requests."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from actors.engine.token_engine import TokenEngine
from actors.engine.translation import EncodedRow, decode_row, encode_row
from actors.settings import GeneratorSettings
from actors.units.ledgers import LedgerOfRun
from actors.units.worker import UnitWorker
from actors.units.workplace import Workplace
from decoding.sampling_params import SamplingParams
from decoding.scope import Scope
from decoding.sequence import Sequence
from pipeline.errors import RowError
from pipeline.inputs.options import InputOptions
from pipeline.inputs.rows import InputRow
from pipeline.inputs.units import WorkUnit
from pipeline.run.commit import Receipt
from pipeline.streaming.stream import UnitError
from pipeline.text.codec import TextCodec

BATCH_INPUT = InputOptions(format="openai_batch")


@dataclass(frozen=True, kw_only=True)
class UnitOrder:
    """A unit that a replica is to do. `sampling` has the parameters of rows that give none of their own."""

    run_path: str
    unit: WorkUnit
    sampling: SamplingParams
    ledger: LedgerOfRun
    owner: str = ""  # of the batch, as of a Generation
    fingerprint: str = ""  # of the engine that must write it; empty: any engine


@dataclass(frozen=True, kw_only=True)
class SharedEngine:
    """The engine of a replica, as its batch workers see it."""

    settings: GeneratorSettings
    codec: TextCodec
    engine: TokenEngine
    footer: dict[str, str | bool | int]  # facts about the engine, for the footer of each part
    scope_of: Callable[[str], Scope]  # of an owner's rows
    finish: Callable[[list[Sequence]], Awaitable[None]]  # in the background; cancelled, it drops what has not run
    workplace: Workplace = field(default_factory=Workplace.of_replica)


class BatchWorker(UnitWorker[EncodedRow]):
    """A worker for units of one batch. Its rows get the tokens that `jobs.generate` writes for them."""

    def __init__(self, shared: SharedEngine, order: UnitOrder) -> None:
        """Open the run of an order; the engine is shared with requests and with other batches."""
        super().__init__(order.run_path, BATCH_INPUT, {}, order.ledger, shared.workplace)
        self._shared = shared
        self._settings = replace(shared.settings, sampling=order.sampling)
        self._scope = shared.scope_of(order.owner)

    async def do(self, unit: WorkUnit) -> Receipt | UnitError | None:
        """Return the receipt of a unit, the reason why it could not be done, or None if it may not begin."""
        return await self._outcome(unit, is_backup=False)

    def _facts(self) -> dict[str, str | bool | int]:
        return self._shared.footer

    def _encode(self, row: InputRow, ordinal: int) -> EncodedRow:
        encoded = encode_row(row, ordinal, self._shared.codec, self._settings, self._scope)
        problem = self._shared.engine.problem_with(encoded.sequences[0])
        if problem is not None:
            raise RowError("encode", problem)
        return encoded

    async def _finish(self, rows: list[EncodedRow]) -> None:
        await self._shared.finish([sequence for row in rows for sequence in row.sequences])

    def _decode(self, row: EncodedRow) -> list[dict[str, Any]]:
        return decode_row(row, self._shared.codec)
