"""The stderr of a command: as text what people read, and warnings; as JSON one object a line and nothing else."""

from __future__ import annotations

import io
import logging
import sys
import time
from contextlib import ExitStack, redirect_stderr
from dataclasses import replace
from types import TracebackType
from typing import TextIO, cast

from pipeline.counts import Counts
from pipeline.logs import Event, LogSettings, logs_to
from pipeline.run.check import CheckReport
from pipeline.run.directory import RunDirectory

_log = logging.getLogger(__name__)


class DriverLogs:
    """The log of a command, from the time its configuration is known (`set_up`) until it ends. Enter it first."""

    def __init__(self) -> None:
        """Take the time; nothing is set up yet."""
        self._started = time.monotonic()
        self._stack = ExitStack()

    def __enter__(self) -> DriverLogs:
        """Return the log."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the process's logging and stderr."""
        self._stack.close()

    def set_up(self, settings: LogSettings, run: str) -> None:
        """Log to stderr. If the format is JSON, each line that the command prints there becomes an event."""
        stderr = sys.stderr
        if settings.format == "json":
            self._stack.enter_context(logs_to(stderr, settings, run=run))
            self._stack.enter_context(redirect_stderr(cast(TextIO, _EventStream(stderr))))
        else:
            quiet = replace(settings, level="warning") if settings.level in ("debug", "info") else settings
            self._stack.enter_context(logs_to(None, quiet))

    def ended(self, outcome: str, exit_code: int) -> None:
        """Log how the command ended."""
        seconds = round(time.monotonic() - self._started, 3)
        _log.info(Event("run ended", outcome=outcome, exit_code=exit_code, seconds=seconds))


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
