"""Logs: one event a line, as text or as JSON, without prompts and outputs unless the settings ask for them.

    _log.info(Event("unit committed", unit=3, rows=256))

To the standard library an event is a message like any other. Where `set_up_logs` was not called (Dray's actors in the
user's own pipeline) it goes through the host's handlers, as `unit committed unit=3 rows=256`.
"""

import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_PACKAGES = ("actors", "decoding", "endpoint", "jobs", "pipeline")  # whose loggers `set_up_logs` sets up


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """How the processes of a run or an endpoint log."""

    format: LogFormat = "text"
    """Form of log lines: text, or JSON objects."""
    level: LogLevel = "info"
    """Least level of the events that are logged."""
    prompts: bool = False
    """Log the message of a failed row and how its prompt begins."""


class Event:
    """One event: `what` happened, a constant text, and its fields. Values that JSON has no form for become text."""

    def __init__(self, what: str, /, **fields: Any) -> None:
        self.what, self.fields = what, fields

    def __str__(self) -> str:
        return " ".join([self.what, *(f"{name}={_shown(value)}" for name, value in self.fields.items())])


def failure_event(what: str, error: BaseException, **fields: Any) -> Event:
    """Return the event of a failure, without messages and values: either may quote a prompt.

    Its `error` lists the types of the exception and its causes, outermost first; its `stack` lists where each was
    raised, as file, line and function.
    """
    kinds, stack, seen = [], [], set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        kinds.append(type(cause).__name__)
        frames = traceback.extract_tb(cause.__traceback__)
        stack += [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        cause = cause.__cause__ or cause.__context__
    return Event(what, **fields, error=kinds, stack=stack)


def set_up_logs(settings: LogSettings, stream: TextIO | None = None, **context: Any) -> None:
    """Send the logs of Dray's packages to `stream` (None: the `sys.stderr` of that moment) and nowhere else.

    JSON lines also have the fields of `context`.
    """
    handler = _StreamHandler(stream)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(_JsonFormatter(context) if settings.format == "json" else text)
    for logger in _loggers():
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(settings.level.upper())


@contextmanager
def logs_to(stream: TextIO | None, settings: LogSettings, **context: Any) -> Iterator[None]:
    """Set up logs as `set_up_logs` does, while the block lasts."""
    before = [(logger, logger.handlers, logger.propagate, logger.level) for logger in _loggers()]
    set_up_logs(settings, stream, **context)
    try:
        yield
    finally:
        for logger, handlers, propagate, level in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)


def tell_warnings(tell: Callable[[str, str], object]) -> None:
    """Call `tell` with the kind and the text of each warning whose message is text; events are counted elsewhere.

    Warnings of one kind differ in their digits alone. It lasts until `set_up_logs` is called again.
    """
    for logger in _loggers():
        logger.addHandler(_WarningHandler(tell))


def _loggers() -> list[logging.Logger]:
    return [logging.getLogger(name) for name in _PACKAGES]


class _StreamHandler(logging.Handler):
    """A handler that writes each line at once. A stream of None is `sys.stderr`, which a progress bar may replace."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        # A line that cannot be written must not stop the work, and an error message on stderr might fail as well.
        with suppress(Exception):
            stream = self._stream or sys.stderr
            stream.write(self.format(record) + "\n")
            stream.flush()


class _WarningHandler(logging.Handler):
    """A handler that passes warnings on."""

    def __init__(self, tell: Callable[[str, str], object]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, str):
            with suppress(Exception):  # a warning that cannot be passed on must not stop the work
                text = record.getMessage()
                self._tell(re.sub(r"\d+", "0", text), text)


class _JsonFormatter(logging.Formatter):
    """A formatter that writes one JSON object: time (UTC), level, logger, event, the context, the event's fields."""

    def __init__(self, context: dict[str, Any]) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
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
    """Return a word as it is and anything else as JSON, so that no value breaks the line or joins the next field."""
    if isinstance(value, str) and value.isprintable() and value and not set(value) & set(' "='):
        return value
    return json.dumps(value, default=str, ensure_ascii=False)
