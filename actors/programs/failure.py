"""The failure of a program as its error row tells it: what it raised, and on which of its lines."""

from __future__ import annotations

import asyncio

from actors.programs.program import Program
from pipeline.errors import RowError


def failure_of(program: Program, error: BaseException) -> RowError:
    """Return the failure of a row whose program has ended with this error."""
    line = program.line_of(_first_of(error)) or program.line_of(error)
    where = "" if line is None else f" (line {line} of {program.name})"
    return RowError("program", f"the program failed: {_said_by(error)}{where}", type(error).__name__)


def _said_by(error: BaseException) -> str:
    """Return the message of an error, after its type where the message may say too little; of a group its first too."""
    name = type(error).__name__
    match error:
        case asyncio.CancelledError():
            return f"{name}: it cancelled its own task, or awaited one that was cancelled"
        case BaseExceptionGroup():
            return f"{error}, the first: {_said_by(error.exceptions[0])}"
        case SystemExit():
            return f"{name}: {error}"
    try:
        return str(error) or name
    except Exception:  # noqa: BLE001 - code of the user: the error is told without its message
        return name


def _first_of(error: BaseException) -> BaseException:
    return _first_of(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
