"""Generator: an Engine in a Ray Data actor. Work units in, committed parts and receipts out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import ray

from actors.drafts.links import DraftLinks
from actors.engine.facts import footer_facts, load_facts
from actors.engine.loop import EngineLoop
from actors.engine.translation import EncodedRow, decode_row, encode_row
from actors.errors import describe
from actors.settings import GeneratorSettings
from actors.stages.target import ShardedModel
from actors.units.worker import UnitWorker
from actors.workers.loading import load_codec, load_engine
from actors.workers.published import publish_engine
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
        """Load the models, which all units share.

        `ledger` and `roster` are the actors of the run's Ledger and, under placement "split", of its DraftRoster.
        """
        super().__init__(run_path, input_options, carried, ledger, log_settings)
        started = time.monotonic()
        self._settings = settings
        links: DraftLinks | None = None
        try:
            self._codec = load_codec(settings)
            links = None if settings.placement == "colocated" else DraftLinks(settings, roster)
            self._loop = EngineLoop(load_engine(settings, links), hang_timeout_s)
            facts = load_facts(self._loop.engine, settings.models.draft)
            self._reporter.loaded(settings.models, facts, time.monotonic() - started)
            self._reporter.start(publish_engine(self._reporter.metrics, self._loop, links))
        except Exception as error:  # noqa: BLE001 - the first unit reports it: Ray Data would wrap it beyond reading
            self._failure = describe(error)
            if links is not None:
                links.close()
            self._reporter.not_loaded(self._failure)
        self._join()

    def _facts(self) -> dict[str, str | bool | int]:
        return footer_facts(self._loop.engine)

    def _encode(self, row: InputRow, ordinal: int) -> EncodedRow:
        return encode_row(row, ordinal, self._codec, self._settings)

    def __del__(self) -> None:
        """End the stages when Ray Data deletes a worker. Ray ends the stages of a process that is killed."""
        target = self._loop.engine.target if hasattr(self, "_loop") else None
        if isinstance(target, ShardedModel) and ray.is_initialized():
            target.pipeline.close()

    async def _finish(self, rows: list[EncodedRow]) -> None:
        await self._loop.finish([sequence for row in rows for sequence in row.sequences])

    def _decode(self, row: EncodedRow) -> list[dict[str, Any]]:
        return decode_row(row, self._codec)
