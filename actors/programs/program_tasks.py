"""Tasks of programs: the task that a program runs in, and those that it begins. None of them ends the event loop.

The loop is the worker's, and serves all rows. asyncio gives a SystemExit or KeyboardInterrupt of a task to those who
await the task, and raises it out of the loop's run as well (`Task.__step` in asyncio/tasks.py). So a program runs in a
task that hands them over as values, and the tasks that it begins turn them into a RuntimeError.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from actors.errors import text_of

_Steps = Coroutine[Any, Any, Any] | Generator[Any, Any, Any]  # what a task can run
_in_program: ContextVar[bool] = ContextVar("in_program", default=False)  # whether a program's code runs
_of_programs: WeakSet[asyncio.Future[Any]] = WeakSet()  # tasks, which may begin others from a context without that
_outside: WeakSet[asyncio.Task[Any]] = WeakSet()  # tasks of programs that wait for the engine


async def run_program(function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Run a program in a task of its own, which it may cancel; return what it returns, and raise what it raises.

    If the caller's task is cancelled, the program is. `let_no_program_end` must have been called for the loop.
    """
    returned, error = await asyncio.create_task(_outcome(function, arguments))
    if error is not None:
        raise error
    return returned


async def _outcome(
    function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]
) -> tuple[Any, BaseException | None]:
    _in_program.set(True)
    if (task := asyncio.current_task()) is not None:
        _of_programs.add(task)
    try:
        return await function(*arguments), None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


@contextmanager
def outside_program() -> Iterator[None]:
    """Let the current task begin tasks that are not the program's, although it is one: those of the engine.

    The task is remembered, not its context: another task of the program may share that, and begin tasks meanwhile.
    """
    task = asyncio.current_task()
    assert task is not None, "only tasks of programs wait for the engine"
    _outside.add(task)
    try:
        yield
    finally:
        _outside.discard(task)


def let_no_program_end(loop: asyncio.AbstractEventLoop) -> None:
    """Keep the event loop from being ended by a task that a program begins. Other tasks are as they were."""
    factory = loop.get_task_factory()
    if not isinstance(factory, _TaskFactory):
        loop.set_task_factory(_TaskFactory(factory))


@dataclass(frozen=True)
class _TaskFactory:
    """The task factory of a loop, which contains the tasks of programs. `before` is the factory that makes them."""

    before: Callable[..., asyncio.Future[Any]] | None

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: _Steps, **named: Any) -> asyncio.Future[Any]:
        new_task: Callable[..., asyncio.Future[Any]] = self.before or _new_task
        beginner = asyncio.current_task(loop)
        if beginner not in _outside:
            if not _in_program.get() and beginner not in _of_programs:
                return new_task(loop, coroutine, **named)
            task = new_task(loop, _Contained(coroutine), **named)
            _of_programs.add(task)
            return task
        context = copy_context()  # what the new task begins is not the program's either
        context.run(_in_program.set, False)
        return context.run(new_task, loop, coroutine, **named)


def _new_task(loop: asyncio.AbstractEventLoop, coroutine: _Steps, **named: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **named)


class _Contained(Coroutine[Any, Any, Any]):
    """The coroutine of a program's task, with a RuntimeError in place of what would end the loop.

    A function that awaits the coroutine would not do: cancelled before its first step, it would never await it.
    """

    def __init__(self, coroutine: _Steps) -> None:
        self._coroutine: Any = coroutine
        self._has_begun = False

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coroutine.throw, *error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._coroutine.__await__())

    def __getattr__(self, name: str) -> Any:  # names, frames and lines, for those who show a task
        return getattr(self._coroutine, name)

    def _step(self, step: Callable[..., Any], *arguments: Any) -> Any:
        if not self._has_begun:
            self._has_begun = True
            _in_program.set(True)  # also in a context that the program has made
        try:
            return step(*arguments)
        except (SystemExit, KeyboardInterrupt) as error:
            raise as_ordinary(error, "a task of the program") from error


def as_ordinary(error: BaseException, raiser: str) -> RuntimeError:
    """Return an error that ends no event loop, in place of one that does. It leads to the same lines."""
    text = text_of(error)
    said = f"{raiser} raised {type(error).__name__}{f': {text}' if text else ''}"
    return RuntimeError(said).with_traceback(error.__traceback__)
