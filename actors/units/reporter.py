"""Reporter: the metrics and the log of a worker's process."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from actors import metric_table as metrics
from actors.heartbeat import Heartbeat
from actors.metrics import Metrics
from actors.units.unit_record import Attempt
from pipeline.errors import ErrorRow
from pipeline.inputs.rows import InputRow
from pipeline.inputs.units import WorkUnit
from pipeline.logs import Event, LogSettings
from pipeline.run.commit import Receipt

if TYPE_CHECKING:  # it brings torch, which a worker without an engine does not need
    from actors.settings import ModelSettings

_EXCERPT = 200  # characters of a prompt
_log = logging.getLogger(__name__)


class Reporter:
    """Counts and logs of one process for one run, or for all batches. Only `row_failed` sees a prompt."""

    def __init__(self, run: str, log_settings: LogSettings) -> None:
        """Publish metrics under the tag `run`; the process's log has been set up."""
        self._log_settings = log_settings
        self.metrics = Metrics(run)
        self._heartbeat = Heartbeat(self.metrics.add_storage_retries)

    def start(self, heartbeat: Heartbeat) -> None:
        """Start a heartbeat that publishes the engine's stats, and beat it at every commit."""
        self._heartbeat = heartbeat
        heartbeat.start()

    def loaded(self, models: ModelSettings, facts: Mapping[str, Any]) -> None:
        """Log that the engine was loaded, with facts about it."""
        draft = {} if models.draft is None else {"draft": models.draft}
        _log.info(Event("actor loaded", target=models.target, **draft, **facts))

    def not_loaded(self, failure: str) -> None:
        """Log that there is no engine. `failure` is about models and options; no row has been read yet."""
        _log.error(Event("actor not loaded", failure=failure))

    def begun(self, unit: WorkUnit, attempt: Attempt, is_backup: bool) -> None:
        """Report that an attempt at a unit begins, or a backup of one that is under way elsewhere."""
        self.metrics.add(metrics.WORKER_DEATHS, attempt.num_deaths)
        if is_backup:
            self.metrics.add(metrics.UNITS_BACKED_UP, 1)
            _log.info(Event("unit backed up", unit=unit.unit_id))
        elif attempt.number:
            self.metrics.add(metrics.UNITS_REPEATED, 1)
            fields = {"after_death": attempt.follows_death, "careful": attempt.is_careful}
            _log.warning(Event("unit repeated", unit=unit.unit_id, attempt=attempt.number, **fields))

    def row_failed(self, error: ErrorRow, row: InputRow | None) -> None:
        """Log an error row. Its prompt, and its message, which may quote it, are logged only with `run.log_prompts`."""
        shown = {}
        if self._log_settings.prompts:
            shown["message"] = error.message
            if row is not None:
                shown["prompt"] = str(row.messages if row.prompt is None else row.prompt)[:_EXCERPT]
        place = {"row": f"{error.file}#{error.row_number + 1}", "row_id": error.row_id}
        level = logging.INFO if error.stage == "validate" else logging.WARNING  # to refuse texts is what a check is for
        _log.log(level, Event("row failed", **place, stage=error.stage, error_type=error.error_type, **shown))

    def committed(self, receipt: Receipt, errors: Seq[ErrorRow]) -> None:
        """Report a committed unit. One that another attempt committed was counted there."""
        counts = receipt.counts
        if receipt.already_committed:
            _log.info(Event("unit found committed", unit=receipt.unit_id))
            return
        assert receipt.seconds is not None
        self.metrics.add_rows(counts, Counter(error.stage for error in errors))
        self.metrics.add(metrics.UNITS_COMMITTED, 1)
        self.metrics.observe(metrics.UNIT_SECONDS, receipt.seconds)
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
        """Log an attempt that ended without a part, with the place that raised. The driver reports the message."""
        frames = extract_tb(error.__traceback__)
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        _log.error(Event("unit failed", unit=unit.unit_id, file=unit.file, error_type=type(error).__name__, at=where))
