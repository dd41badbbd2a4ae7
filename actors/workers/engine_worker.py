"""EngineWorker: an engine for the run that a WorkerSpec says: units in, parts and receipts out. Mostly a Ray actor."""

from dataclasses import dataclass
from typing import Any

from actors.engine.loop import EngineStats
from actors.engines import backend_of
from actors.engines.loading import LoadedEngine, publish_engine
from actors.errors import describe
from actors.settings import GeneratorSettings
from actors.tasks import Task
from actors.units.unit_rows import WholeUnits
from actors.units.worker import UnitWorker, Workplace, open_run
from actors.workers.draft_follower import DraftFollower, offers_of
from pipeline.inputs.units import WorkUnit
from pipeline.logs import LogSettings, tell_warnings
from pipeline.run.commit import Receipt
from pipeline.run.row_sample import NO_ROWS, RowSample
from pipeline.streaming.stream import UnitError


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What all workers of a run are told."""

    settings: GeneratorSettings
    task: Task
    run_path: str
    units: WholeUnits
    recorded_rows: RowSample = NO_ROWS  # whose rounds are kept
    follows_drafts: bool = True  # that are offered to the run while it goes on
    hang_timeout_s: float
    log_settings: LogSettings


class EngineWorker(UnitWorker):
    """A worker with an engine of its own."""

    _failure: str | None = None  # the reason why no unit can run here, which the first unit reports

    def __init__(self, spec: WorkerSpec, ledger: Any, roster: Any = None, workplace: Workplace | None = None) -> None:
        """Load the models. `ledger` is the actor of the run's Ledger, or a LocalLedger; `roster` is its DraftRoster."""
        settings, workplace = spec.settings, workplace or Workplace.of_run(spec.run_path, spec.log_settings)
        reporter = workplace.reporter
        tell_warnings(lambda kind, text: ledger.warn.remote(kind, text))
        try:
            run = open_run(spec.run_path)
            self.engine = engine = LoadedEngine(settings, roster, spec.hang_timeout_s)
            rows = spec.task.rows(engine, run, spec.recorded_rows)
            super().__init__(run, rows, spec.units, ledger, workplace, engine.footer, engine.round_seconds)
            reporter.loaded(settings.models, engine.facts)
            reporter.start(publish_engine(reporter.metrics, engine.loop, engine.links, self._tell))
            if spec.follows_drafts and backend_of(settings).why_draft_stays is None:
                self._follower = DraftFollower(engine.loop, settings.models, *offers_of(ledger, roster))
                self._follower.start()
        except Exception as error:  # noqa: BLE001 - the first unit reports it: Ray Data would wrap it beyond reading
            self._failure = describe(error)
            reporter.not_loaded(self._failure)
        ledger.join.remote(workplace.process)

    def _tell(self, stats: EngineStats) -> None:
        """Tell the ledger how much this engine has written, of units that are not committed, too."""
        self.ledger.note_written.remote(self.workplace.process, stats.num_texts, stats.num_tokens)

    async def outcome(self, unit: WorkUnit, is_backup: bool = False) -> Receipt | UnitError | None:
        """Return what a UnitWorker does, or why there is no engine."""
        return await super().outcome(unit, is_backup) if self._failure is None else UnitError(self._failure)
