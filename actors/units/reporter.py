"""Reporter: what a worker's process tells those who watch: metrics through Ray, events to its log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

import ray

from actors import metrics
from actors.metrics import Heartbeat, Metrics
from actors.units.ledger import Attempt
from pipeline.errors import ErrorRow
from pipeline.inputs.rows import InputRow
from pipeline.inputs.units import WorkUnit
from pipeline.logs import Event, LogSettings, set_up_logs
from pipeline.run.commit import Receipt
from pipeline.storage.location import Location

if TYPE_CHECKING:  # they bring torch, which a worker without an engine does not need
    from actors.drafts.links import DraftLinks
    from actors.engine.loop import EngineLoop
    from actors.settings import ModelSettings

_EXCERPT = 200  # characters of a prompt
_log = logging.getLogger(__name__)


class Reporter:
    """Counts and logs what one process does for one run. Nothing here knows a prompt but `row_failed`."""

    def __init__(self, output: str, log_settings: LogSettings) -> None:
        """Set up the process's log, which goes to stderr: Ray writes that to a file of the process's own."""
        run, context = Location.parse(output).short_name, ray.get_runtime_context()
        self._log_settings = log_settings
        where = {"job": context.get_job_id(), "node": context.get_node_id(), "worker": context.get_worker_id()}
        set_up_logs(log_settings, run=run, **where)
        self._metrics = Metrics(run)
        self._heartbeat = Heartbeat(self._metrics.add_storage_retries)

    def loaded(
        self,
        loop: EngineLoop,
        models: ModelSettings,
        facts: Mapping[str, Any],
        seconds: float,
        links: DraftLinks | None = None,
    ) -> None:
        """The engine is there, of which these are the facts; from now on its numbers are published.

        `links` lead to its draft actors, if it has any.
        """
        draft = {} if models.draft is None else {"draft": models.draft}
        _log.info(Event("actor loaded", target=models.target, **draft, **facts, seconds=round(seconds, 3)))
        self._heartbeat = publish_engine(self._metrics, loop, links)
        self._heartbeat.start()

    def not_loaded(self, failure: str) -> None:
        """There is no engine. `failure` is about models and options; no row has been read yet."""
        _log.error(Event("actor not loaded", failure=failure))

    def begun(self, unit: WorkUnit, attempt: Attempt, is_backup: bool) -> None:
        """An attempt at a unit begins, or a backup of one that is under way elsewhere."""
        self._metrics.add(metrics.WORKER_DEATHS, attempt.num_deaths)
        if is_backup:
            self._metrics.add(metrics.UNITS_BACKED_UP, 1)
            _log.info(Event("unit backed up", unit=unit.unit_id))
        elif attempt.number:
            self._metrics.add(metrics.UNITS_REPEATED, 1)
            fields = {"after_death": attempt.follows_death, "careful": attempt.is_careful}
            _log.warning(Event("unit repeated", unit=unit.unit_id, attempt=attempt.number, **fields))

    def row_failed(self, error: ErrorRow, row: InputRow | None) -> None:
        """A row is an error row now. Its message may quote it, so that needs leave, as its prompt does."""
        shown = {}
        if self._log_settings.prompts:
            shown["message"] = error.message
            if row is not None:
                shown["prompt"] = str(row.messages if row.prompt is None else row.prompt)[:_EXCERPT]
        place = {"row_id": error.row_id, "file": error.file, "row_number": error.row_number}
        _log.warning(Event("row failed", **place, stage=error.stage, error_type=error.error_type, **shown))

    def committed(self, receipt: Receipt, errors: Seq[ErrorRow]) -> None:
        """A unit's part is there: from this attempt, or from another one that was counted where it was made."""
        counts = receipt.counts
        if receipt.already_committed:
            _log.info(Event("unit found committed", unit=receipt.unit_id))
            return
        assert receipt.seconds is not None
        self._metrics.add_rows(counts, Counter(error.stage for error in errors))
        self._metrics.add(metrics.UNITS_COMMITTED, 1)
        self._metrics.observe(metrics.UNIT_SECONDS, receipt.seconds)
        self._heartbeat.beat()  # the process may end before the next one
        _log.info(
            Event(
                "unit committed",
                unit=receipt.unit_id,
                attempt=receipt.attempt,
                rows=counts.num_rows,
                errors=counts.num_errors,
                tokens=counts.num_output_tokens,
                rounds=counts.num_rounds,
                drafted=counts.num_draft_tokens,
                accepted=counts.num_accepted_tokens,
                seconds=round(receipt.seconds, 3),
            )
        )

    def unit_failed(self, unit: WorkUnit, error: Exception) -> None:
        """An attempt ended without a part. The driver is told the message; here stands where it was raised."""
        frames = extract_tb(error.__traceback__)
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        _log.error(Event("unit failed", unit=unit.unit_id, file=unit.file, error_type=type(error).__name__, at=where))


def publish_engine(to: Metrics, loop: EngineLoop, links: DraftLinks | None = None) -> Heartbeat:
    """A heartbeat that publishes an engine's numbers, its links' to draft actors, and the process's storage retries."""

    def publish() -> None:
        numbers = loop.numbers()
        to.set(metrics.ENGINE_SLOTS, numbers.num_slots)
        to.set(metrics.ENGINE_RUNNING, numbers.num_running)
        to.set(metrics.ENGINE_WAITING, numbers.num_waiting)
        to.add_up_to(metrics.ENGINE_BUSY_SECONDS, numbers.busy_seconds)
        to.add_up_to(metrics.ENGINE_ROUND_SECONDS, numbers.round_seconds)
        to.add_up_to(metrics.OUT_OF_MEMORY, numbers.num_out_of_memory)
        if links is not None:
            of_links = links.numbers
            to.add_up_to(metrics.DRAFT_LOSSES, of_links.num_losses)
            to.add_up_to(metrics.DRAFT_TIMEOUTS, of_links.num_timeouts)
            to.add_up_to(metrics.DRAFT_BYTES_SENT, of_links.num_bytes_sent)
            to.add_up_to(metrics.DRAFT_BYTES_RECEIVED, of_links.num_bytes_received)
            to.add_up_to(metrics.DRAFT_WAIT_SECONDS, of_links.wait_seconds)
        to.add_storage_retries()

    return Heartbeat(publish)
