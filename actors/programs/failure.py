"""The failure of a program as its error row tells it: what it raised, and on which of its lines."""

from __future__ import annotations

import asyncio

from actors.programs.error_text import text_of
from actors.programs.program import Program
from pipeline.errors import RowError


def failure_of(program: Program, error: BaseException) -> RowError:
    """Return the failure of a row whose program has ended with this error."""
    first = _first_of(error)
    line = program.line_of(first) or program.line_of(error)
    where = "" if line is None else f" (line {line} of {program.name})"
    group = "" if first is error else f"{text_of(error) or type(error).__name__}, the first: "
    return RowError("program", f"the program failed: {group}{_said_by(first)}{where}", type(error).__name__)


def _said_by(error: BaseException) -> str:
    """Return the message of an error, after its type where the message may say too little."""
    name, text = type(error).__name__, text_of(error)
    match error:
        case asyncio.CancelledError():
            return f"{name}: it cancelled its own task, or awaited one that was cancelled"
        case SystemExit() if text:
            return f"{name}: {text}"
    return text or name


def _first_of(error: BaseException) -> BaseException:
    """Return the first error in a group that is no group itself, however deep it is; of another error, the error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
