"""Calls of a program's tools: in threads of their own, with values that JSON can hold, and a record of the results."""

import asyncio
import hashlib
import inspect
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from actors.programs.program_tasks import as_ordinary
from pipeline.errors import RowError
from pipeline.logs import failure_event
from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location
from pipeline.storage.whole_file import create_file


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


_log = logging.getLogger(__name__)


@dataclass
class ToolRecord:
    """The results of the tools that one sample of a row has called, so that a repeated unit meets the same ones.

    A tool may answer otherwise the next time (a search, a clock), and then the text behind it would be another one. So
    a result is written to a file of its own before the program sees it. The first file of a call wins: all attempts at
    a unit go on with its result. The files of a unit are deleted once its part is committed, which has the results in
    its rows.

    On an object store a later file replaces an earlier one, so two attempts at one unit at the same moment may meet
    different results; the part that is committed has those that its own text was written with.
    """

    run_directory: RunDirectory
    row_id: int
    sample: int
    _num_calls: Counter[str] = field(default_factory=Counter)  # by the digest of name and arguments

    def place(self, path: tuple[int, ...], name: str, arguments: dict[str, Any]) -> Location:
        """Return where the result of the next call of this tool with these arguments in this branch is, or will be."""
        called = json.dumps([path, name, arguments], sort_keys=True)
        digest = hashlib.sha256(called.encode()).hexdigest()[:32]
        number = self._num_calls[digest]
        self._num_calls[digest] += 1
        file = f"{self.row_id & 0xFFFFFFFF:08d}-{self.sample}-{digest}-{number}.json"
        return folder_of(self.run_directory, self.row_id >> 32).child(file)

    def read(self, place: Location) -> tuple[Any, ...]:
        """Return the recorded result as the only entry; nothing if there is none."""
        content = place.read_if_there()
        return () if content is None else (json.loads(content),)

    def write(self, place: Location, result: Any) -> Any:
        """Record a result, and return the one that counts: this one, or that of an attempt that was first."""
        folder_of(self.run_directory, self.row_id >> 32).make_folder()
        if create_file(place, json.dumps(result).encode(), self.run_directory.temporary):
            return result
        return json.loads(place.read_bytes())


def folder_of(run_directory: RunDirectory, unit_id: int) -> Location:
    """Return the folder of the results of a unit's tools."""
    return run_directory.location.child(f"tools/unit-{unit_id:09d}")


def forget_results(run_directory: RunDirectory, unit_id: int, row_ids: set[int]) -> None:
    """Delete the recorded results of these rows of a unit, which are committed. Those of failed rows stay for a retry.

    A storage that fails is logged: nothing depends on it.
    """
    folder, names = folder_of(run_directory, unit_id), {f"{row_id & 0xFFFFFFFF:08d}" for row_id in row_ids}
    try:
        for info in folder.list():
            if info.base_name.partition("-")[0] in names:
                folder.at(info.path).remove()
    except OSError as error:
        _log.warning(failure_event("results of tools not deleted", error))
