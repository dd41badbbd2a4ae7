"""The stderr of a command: as text what people read, and warnings; as JSON one object a line and nothing else."""

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from typing import TextIO, cast

from pipeline.counts import Counts
from pipeline.logs import Event, LogSettings, logs_to
from pipeline.run.check import CheckReport
from pipeline.run.directory import RunDirectory

_log = logging.getLogger(__name__)


@contextmanager
def command_logs(settings: LogSettings, run: str) -> Iterator[None]:
    """Log to stderr while the block runs. If the format is JSON, each line that is printed there becomes an event."""
    if settings.format == "json":
        stderr = sys.stderr
        with logs_to(stderr, settings, run=run), redirect_stderr(cast(TextIO, _EventStream(stderr))):
            yield
    else:
        quiet = replace(settings, level="warning") if settings.level in ("debug", "info") else settings
        with logs_to(None, quiet):
            yield


def log_run_started(run_directory: RunDirectory, num_units_to_do: int) -> None:
    """Log which run begins or goes on, and what it has to do."""
    whole = run_directory.manifest
    _log.info(
        Event(
            "run started",
            output=run_directory.location.name,
            identity=run_directory.identity_digest,
            units=whole.num_units,
            rows=whole.num_rows,
            units_to_do=num_units_to_do,
        )
    )


def log_run_stopped(num_units_to_do: int) -> None:
    """Log that the run was asked to stop, and how much is left to the next command."""
    _log.info(Event("run stopped", units_to_do=num_units_to_do))


def log_run_finished(new: Counts, check: CheckReport, seconds: float) -> None:
    """Log what this command added, and whether the whole was verified."""
    _log.info(
        Event(
            "run finished",
            complete=check.is_complete,
            rows=new.num_rows,
            errors=new.num_errors,
            tokens=new.num_output_tokens,
            rounds=new.num_rounds,
            drafted=new.num_draft_tokens,
            accepted=new.num_accepted_tokens,
            seconds=round(seconds, 3),
        )
    )


def log_run_ended(outcome: str, exit_code: int, seconds: float) -> None:
    """Log how the command ended."""
    _log.info(Event("run ended", outcome=outcome, exit_code=exit_code, seconds=round(seconds, 3)))


class _EventStream(io.TextIOBase):
    """A text stream whose lines become log events: errors if the text begins as an error message, else warnings.

    All lines of one text have the level of its first line, which the others explain.
    """

    def __init__(self, stderr: TextIO) -> None:
        self._stderr, self._line, self._level = stderr, "", logging.WARNING

    def write(self, text: str) -> int:
        if not self._line and text.strip():
            self._level = logging.ERROR if text.startswith(("error:", "problem:")) else logging.WARNING
        *lines, self._line = (self._line + text).split("\n")
        for line in filter(None, map(str.strip, lines)):
            _log.log(self._level, Event("said", text=line))
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """Return the descriptor of the real stderr, to which native code goes on writing."""
        return self._stderr.fileno()
