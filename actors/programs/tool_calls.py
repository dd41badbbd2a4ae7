"""Calls of a program's tools: in threads of their own, with values that JSON can hold."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from actors.programs.program_tasks import as_ordinary
from pipeline.errors import RowError


@dataclass(frozen=True)
class ToolResult:
    """A call of a tool. Arguments and result are JSON text."""

    name: str
    arguments: str
    result: str


async def result_of(tool: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Return what a tool returns. One that is not async has a thread of its own: if it hangs, no pool waits for it."""
    if inspect.iscoroutinefunction(tool):
        return await tool(**arguments)
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = tool(**arguments)
        except StopIteration as raised:  # which no future can hold
            error = as_ordinary(raised, "the tool")
        except Exception as raised:  # noqa: BLE001 - handed to the program, which waits for an answer
            error = raised
        except BaseException as raised:  # noqa: BLE001 - as it is it would end the event loop from a task of the program
            error = as_ordinary(raised, "the tool")
        with suppress(RuntimeError):  # the event loop is closed: the program is gone
            loop.call_soon_threadsafe(settle, result, error)

    name = f"tool {getattr(tool, '__name__', '')}"
    threading.Thread(target=copy_context().run, args=(run,), name=name, daemon=True).start()
    return await answer


def as_json(what: str, value: Any) -> Any:
    """Return a value as it is read back from JSON. Raises RowError for one that JSON cannot hold."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise RowError("program", f"the {what} must be what JSON can hold: {error}", type(error).__name__) from error
