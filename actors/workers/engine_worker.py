"""EngineWorker: an engine for the run that a WorkerSpec says: units in, parts and receipts out. Mostly a Ray actor.

Its DraftFollower lets the engine use the draft that the run wants.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray

from actors.engine.loop import EngineLoop, EngineStats
from actors.engine.translation import EncodedRow
from actors.engines import backend_of
from actors.engines.loading import LoadedEngine, publish_engine
from actors.errors import describe
from actors.heartbeat import EVERY_S, Heartbeat
from actors.rows.plain import PlainRows
from actors.run_notes import Rejection, WantedDraft, WrittenText
from actors.settings import GeneratorSettings, ModelSettings
from actors.tasks import Task
from actors.units.unit_rows import WholeUnits
from actors.units.worker import UnitWorker, open_run
from actors.units.workplace import Workplace
from actors.workers.auditor import Auditor
from actors.workers.turns import exchange
from decoding.engine.draft_folder import read_replacement
from decoding.pace.learned import Learned
from pipeline.inputs.units import WorkUnit
from pipeline.logs import Event, LogSettings, tell_warnings
from pipeline.run.commit import Receipt
from pipeline.run.earlier_rows import earlier_texts
from pipeline.run.row_sample import NO_ROWS, RowSample
from pipeline.streaming.calls import UnitError

LOOK_EVERY_S = 2.0
_PATIENCE_S = 30.0  # for a reply
Wanted = Callable[[], WantedDraft]
Reject = Callable[[int, Rejection], object]
_log = logging.getLogger(__name__)


class DraftFollower:
    """Lets one engine use the draft that its run wants, while it works. Only one thread at a time may call `look`.

    A thread asks every few seconds which version that is. It reads the weights of another one beside the engine, which
    takes them between two steps. What cannot be read or does not fit is told to the run, and the engine goes on with
    the draft that it has; so is a draft that the engine took back.
    """

    def __init__(self, loop: EngineLoop, models: ModelSettings, wanted: Wanted, reject: Reject) -> None:
        """Follow a run with the engine of a loop, which was loaded with these models.

        `wanted` returns the version that engines are to use, and raises if the run cannot be asked now. `reject` tells
        the run that this engine does not use a version.
        """
        self._loop, self._models, self._wanted, self._tell_rejected = loop, models, wanted, reject
        self._rejected: set[int] = set()  # by this engine: what the run has not heard of yet is not tried again
        self._heartbeat = Heartbeat(self.look, LOOK_EVERY_S)

    def start(self) -> None:
        """Look now, so that the engine begins with the wanted draft, and then every few seconds."""
        self.look()
        self._heartbeat.start()

    def look(self) -> None:
        """Compare what the engine uses with what the run wants, and replace it if that differs."""
        try:
            rollback = self._loop.engine.take_rollback()
            if rollback is not None:
                shares = f"{rollback.after:.3f} of its tokens were accepted, and {rollback.before:.3f} before"
                self._reject(rollback.version, Rejection("rolled back", shares))
            wanted = self._wanted()
        except Exception as error:  # noqa: BLE001 - the run is busy, or has just ended; the next look asks again
            _log.debug(Event("draft not looked for", failure=describe(error)))
            return
        if wanted.number != self._loop.engine.draft_version and wanted.number not in self._rejected:
            self._use(wanted)

    def _use(self, wanted: WantedDraft) -> None:
        models = self._models
        assert models.draft is not None, "a run without a draft has no offers"
        try:
            if self._loop.engine.has_remote_drafts:
                self._loop.draft_was_replaced(wanted.number)
            else:
                path = wanted.path or models.draft
                weights = read_replacement(path, models.draft, models.dtype, models.target)
                self._loop.replace_draft(weights, wanted.number)
        except Exception as error:  # noqa: BLE001 - the engine goes on with the draft that it has
            self._reject(wanted.number, Rejection("refused", describe(error)))
            return
        _log.info(Event("draft replaced", version=wanted.number, draft=wanted.path or models.draft))

    def _reject(self, number: int, rejection: Rejection) -> None:
        self._rejected.add(number)
        self._tell_rejected(number, rejection)


def offers_of(ledger: Any, roster: Any) -> tuple[Wanted, Reject]:
    """Return how the run of a ledger is asked and told.

    Where the draft is in draft actors, of which `roster` knows, an engine follows what all of them use already.
    """
    if roster is None:
        return lambda: ray.get(ledger.wanted_draft.remote(), timeout=_PATIENCE_S), ledger.reject_draft.remote
    return lambda: WantedDraft(ray.get(roster.draft_version.remote(), timeout=_PATIENCE_S)), ledger.reject_draft.remote


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What all workers of a run are told."""

    settings: GeneratorSettings
    task: Task
    run_path: str
    units: WholeUnits
    recorded_rows: RowSample = NO_ROWS  # whose rounds are kept
    reuse: str | None = None  # the run whose texts are predictions
    follows_drafts: bool = True  # that are offered to the run while it goes on
    learned: Learned | None = None  # by engines of an earlier command, of drafters that take turns
    audits: bool = False  # whether units of others are audited, and a call waits for the audit of its unit
    hang_timeout_s: float
    log_settings: LogSettings
    tells_every_s: float = EVERY_S  # how often the ledger is told what is written, to show while the run goes on
    tells_text: bool = False  # and whether a finished text is among it


class EngineWorker(UnitWorker):
    """A worker with an engine of its own."""

    def __init__(self, spec: WorkerSpec, ledger: Any, roster: Any = None, workplace: Workplace | None = None) -> None:
        """Load the models. `ledger` is the actor of the run's Ledger, or a LocalLedger; `roster` is its DraftRoster."""
        settings, workplace = spec.settings, workplace or Workplace.of_run(spec.run_path, spec.log_settings)
        reporter = workplace.reporter
        self.ledger, self.workplace, self._owes_text = ledger, workplace, spec.tells_text
        self._auditor: Auditor | None = None
        tell_warnings(lambda kind, text: ledger.warn.remote(kind, text))
        try:
            run = open_run(spec.run_path)
            self.engine = engine = LoadedEngine(settings, roster, spec.hang_timeout_s)
            rows = spec.task.rows(engine, run, spec.recorded_rows)
            if spec.reuse is not None:
                assert isinstance(rows, PlainRows), "a configuration of other rows is refused"
                rows = replace(rows, earlier=earlier_texts(spec.reuse, run))
            super().__init__(run, rows, spec.units, ledger, workplace, engine.footer, engine.round_seconds)
            reporter.loaded(settings.models, engine.facts)
            reporter.start(publish_engine(reporter.metrics, engine.loop, engine.links, self._tell, spec.tells_every_s))
            exchange(engine.loop, ledger, workplace.process, spec.learned)
            if spec.follows_drafts and backend_of(settings).why_draft_stays is None:
                self._follower = DraftFollower(engine.loop, settings.models, *offers_of(ledger, roster))
                self._follower.start()
        except Exception as error:  # noqa: BLE001 - told to the ledger: Ray Data would wrap it beyond reading
            self.failure = describe(error)
            reporter.not_loaded(self.failure)
            self.tell_failure(self.failure)
        else:
            ledger.join.remote(workplace.process, workplace.node, workplace.actor, workplace.card)
            if spec.audits:
                self._auditor = Auditor(self, engine)
                self._auditor.start()

    async def outcome(self, unit: WorkUnit, is_backup: bool = False) -> Receipt | UnitError | None:
        """Return what `UnitWorker.outcome` does, where units are audited once its audit has ended.

        The ledger has heard by then what the engine has learned.
        """
        work = super().outcome(unit, is_backup)
        found = await (work if self._auditor is None else self._auditor.outcome(unit, work))
        if self.failure is None and (learned := self.engine.loop.engine.learned) is not None:
            await self.ledger.note_learned.remote(self.workplace.process, learned)
        return found

    def _tell(self, stats: EngineStats) -> None:
        """Tell the ledger how much this engine has written, of units that are not committed, too."""
        self.ledger.note_written.remote(self.workplace.process, stats.num_texts, stats.num_tokens)
        if self.engine.links is not None:
            work = self.engine.links.work(stats.busy_seconds)
            self.ledger.note_draft_work.remote(self.workplace.process, work)
        exchange(self.engine.loop, self.ledger, self.workplace.process)
        if self._owes_text and (text := self._finished_text()) is not None:
            self._owes_text = False
            self.ledger.note_text.remote(text)

    def _finished_text(self) -> WrittenText | None:
        """Return the text of a row that has run, of a unit that need not be done; None if there is none yet."""
        for unit, rows in list(self.under_way.values()):
            for row in rows:
                if isinstance(row, EncodedRow) and self.engine.loop.has_finished(row.sequences):
                    with suppress(Exception):  # a row that fails is told at its commit
                        found = self.rows.decode(row)[0]
                        name = unit.row_name(row.row.row_id, found["id"])
                        return WrittenText(name, found["prompt"] or "", found["text"])
        return None
