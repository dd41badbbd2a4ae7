"""EngineWorker: a UnitWorker whose units share one engine. A subclass says what the engine does with a row."""

from collections.abc import Mapping
from typing import Any, TypeVar

import pyarrow as pa

from actors.engine.loop import EngineStats
from actors.engines import backend_of
from actors.engines.loading import LoadedEngine, publish_engine
from actors.errors import describe
from actors.settings import GeneratorSettings
from actors.units.worker import EncodedInput, UnitWorker
from actors.units.workplace import Workplace
from actors.workers.draft_follower import DraftFollower, offers_of
from pipeline.inputs.options import InputOptions
from pipeline.logs import LogSettings, tell_warnings

_Row = TypeVar("_Row", bound=EncodedInput)


class EngineWorker(UnitWorker[_Row]):
    """A worker with an engine of its own."""

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
        super().__init__(run_path, input_options, carried, ledger, Workplace.of_run(run_path, log_settings))
        tell_warnings(lambda kind, text: ledger.warn.remote(kind, text))
        self._settings = settings
        try:
            self._engine = LoadedEngine(settings, roster, hang_timeout_s)
            self._codec, self._loop = self._engine.codec, self._engine.loop
            self._begin()
            self._reporter.loaded(settings.models, self._engine.facts)
            heartbeat = publish_engine(self._reporter.metrics, self._loop, self._engine.links, self._tell)
            self._reporter.start(heartbeat)
            if backend_of(settings).why_draft_stays is None:
                self._follower = DraftFollower(self._loop, settings.models, offers_of(ledger, roster))
                self._follower.start()
        except Exception as error:  # noqa: BLE001 - the first unit reports it: Ray Data would wrap it beyond reading
            self._failure = describe(error)
            self._reporter.not_loaded(self._failure)
        self._join()

    def _tell(self, stats: EngineStats) -> None:
        """Tell the ledger how much this engine has written, of units that are not committed, too."""
        self._ledger.note_written.remote(self._process, stats.num_texts, stats.num_tokens)

    def _begin(self) -> None:
        """Prepare what the rows need of the engine. Raises ValueError if it cannot do what this worker promises."""

    def _facts(self) -> dict[str, str | bool | int]:
        return self._engine.footer

    def _round_seconds(self) -> tuple[float, ...]:
        return self._engine.round_seconds
