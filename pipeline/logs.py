"""Logs: one event a line, as text or as JSON. What a prompt or an output says is in none, unless somebody asks for it.

    _log.info(Event("unit committed", unit=3, rows=256))

An event is a message like any other to the standard library: where nobody set anything up (our actors in somebody
else's pipeline) it goes through the host's own handlers, as `unit committed unit=3 rows=256`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_PACKAGES = ("actors", "decoding", "endpoint", "jobs", "pipeline")  # whose loggers are ours


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """How a run's processes log."""

    format: LogFormat = "text"
    """Log lines as text, or as JSON objects, which then are all that the driver's stderr has."""
    level: LogLevel = "info"
    """Least level of logged events. In text the driver logs warnings and errors only: it prints."""
    prompts: bool = False
    """Log the message of a failed row and how its prompt begins."""


class Event:
    """What happened, in words that never change, and its fields."""

    def __init__(self, what: str, /, **fields: Any) -> None:
        """The fields hold what JSON can; anything else is shown as text."""
        self.what, self.fields = what, fields

    def __str__(self) -> str:
        return " ".join([self.what, *(f"{name}={_shown(value)}" for name, value in self.fields.items())])


def set_up_logs(settings: LogSettings, stream: TextIO | None = None, **context: Any) -> None:
    """Send what our packages log to `stream` (None: what `sys.stderr` is then) and nowhere else, from now on.

    JSON lines carry `context`, too.
    """
    handler = _StreamHandler(stream)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(_JsonFormatter(context) if settings.format == "json" else text)
    for logger in _loggers():
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(settings.level.upper())


@contextmanager
def logs_to(stream: TextIO | None, settings: LogSettings, **context: Any) -> Iterator[None]:
    """`set_up_logs`, while the block lasts."""
    before = [(logger, logger.handlers, logger.propagate, logger.level) for logger in _loggers()]
    set_up_logs(settings, stream, **context)
    try:
        yield
    finally:
        for logger, handlers, propagate, level in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)


def _loggers() -> list[logging.Logger]:
    return [logging.getLogger(name) for name in _PACKAGES]


class _StreamHandler(logging.Handler):
    """Writes each line at once. None is `sys.stderr` as it is then: a progress bar may stand in for it meanwhile."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record's line."""
        # Nobody stops work because a line cannot be written; to say so on stderr could be another such line.
        with suppress(Exception):
            stream = self._stream or sys.stderr
            stream.write(self.format(record) + "\n")
            stream.flush()


class _JsonFormatter(logging.Formatter):
    """A JSON object a line: time (UTC), level, logger, event, the context, the event's fields."""

    def __init__(self, context: dict[str, Any]) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        event = record.msg if isinstance(record.msg, Event) else Event(record.getMessage())
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event.what,
            **self._context,
            **event.fields,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _shown(value: Any) -> str:
    """A word as it is, anything else as JSON: no value breaks the line or runs into the next field."""
    if isinstance(value, str) and value.isprintable() and value and not set(value) & set(' "='):
        return value
    return json.dumps(value, default=str, ensure_ascii=False)
