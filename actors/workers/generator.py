"""Generator: an Engine in a Ray Data actor. Work units in, committed parts and receipts out."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from actors.engine.translation import EncodedRow, decode_row, encode_row
from actors.errors import describe
from actors.settings import GeneratorSettings
from actors.units.worker import UnitWorker
from actors.workers.loading import LoadedEngine, publish_engine
from pipeline.inputs.options import InputOptions
from pipeline.inputs.rows import InputRow
from pipeline.logs import LogSettings


class Generator(UnitWorker[EncodedRow]):
    """A worker whose units share one engine."""

    def __init__(
        self,
        settings: GeneratorSettings,
        run_path: str,
        input_options: InputOptions,
        carried: Mapping[str, pa.DataType],
        ledger: Any,
        hang_timeout_s: float,
        log_settings: LogSettings,
        roster: Any = None,
    ) -> None:
        """Load the models. `roster` is the actor of the run's DraftRoster under placement "split"."""
        super().__init__(run_path, input_options, carried, ledger, log_settings)
        self._settings = settings
        try:
            self._engine = LoadedEngine(settings, roster, hang_timeout_s)
            self._codec, self._loop = self._engine.codec, self._engine.loop
            self._reporter.loaded(settings.models, self._engine.facts)
            self._reporter.start(publish_engine(self._reporter.metrics, self._loop, self._engine.links))
        except Exception as error:  # noqa: BLE001 - the first unit reports it: Ray Data would wrap it beyond reading
            self._failure = describe(error)
            self._reporter.not_loaded(self._failure)
        self._join()

    def _facts(self) -> dict[str, str | bool | int]:
        return self._engine.footer

    def _encode(self, row: InputRow, ordinal: int) -> EncodedRow:
        return encode_row(row, ordinal, self._codec, self._settings)

    async def _finish(self, rows: list[EncodedRow]) -> None:
        await self._loop.finish([sequence for row in rows for sequence in row.sequences])

    def _decode(self, row: EncodedRow) -> list[dict[str, Any]]:
        return decode_row(row, self._codec)
