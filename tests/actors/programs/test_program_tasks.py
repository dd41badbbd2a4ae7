"""Tasks of programs are held back from the event loop; tasks of others, the engine's and the worker's, are not."""

import asyncio
import gc
import inspect
import warnings
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

import pytest

from actors.programs.program_rows import ProgramRows
from actors.programs.program_tasks import let_no_program_end, outside_program, run_program
from actors.settings import ProgramSettings
from tests.actors.programs import some_programs
from tests.actors.programs.running import ROWS, SOME, run_in_a_loop, write
from tests.endpoint.in_process import settings_of


async def leave() -> None:
    raise SystemExit(6)


def test_a_task_of_others_ends_the_loop_as_ever_beside_programs():
    async def program() -> None:
        with pytest.raises(RuntimeError, match="a task of the program raised SystemExit: 6"):
            await asyncio.create_task(leave())

    async def work() -> None:
        let_no_program_end(asyncio.get_running_loop())
        await run_program(program)
        await asyncio.create_task(leave())

    with pytest.raises(SystemExit, match="6"):
        asyncio.run(work())


class _Factory:
    """A task factory of others, which notes what it is asked for."""

    def __init__(self) -> None:
        self.coroutines: list[Coroutine[Any, Any, Any]] = []

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> asyncio.Task[Any]:
        self.coroutines.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **named)


def test_the_engine_that_a_program_wakes_and_the_task_factory_of_others_stay_as_they_are(
    run_directory, engines, text_pair
):
    factory = _Factory()

    def new_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        loop.set_task_factory(factory)  # type: ignore[arg-type]
        return loop

    write(f"{SOME}:side_by_side", run_directory, engines(), text_pair, new_loop=new_loop)
    contained = {each.__qualname__ for each in factory.coroutines if not inspect.iscoroutine(each)}
    untouched = {each.__qualname__ for each in factory.coroutines if inspect.iscoroutine(each)}
    assert contained == {"side_by_side.<locals>.branch"}
    assert {"EngineLoop._run", "ProgramRows._run"} <= untouched


def test_what_a_task_of_a_program_begins_while_it_waits_for_the_engine_is_not_the_programs():
    async def begin_another() -> asyncio.Task[None]:
        return asyncio.create_task(asyncio.sleep(0))

    async def branch() -> None:
        with outside_program():
            await asyncio.sleep(0)
            task = asyncio.create_task(begin_another())
        assert inspect.iscoroutine(task.get_coro())
        assert inspect.iscoroutine((await task).get_coro())
        task = asyncio.create_task(asyncio.sleep(0))
        assert not inspect.iscoroutine(task.get_coro())
        await task

    async def program() -> None:
        await asyncio.create_task(branch())

    async def work() -> None:
        let_no_program_end(asyncio.get_running_loop())
        await run_program(program)

    asyncio.run(work())


def test_a_task_that_a_program_begins_from_an_empty_context_does_not_end_the_loop():
    async def begin_from_an_empty_context(depth: int) -> None:
        if depth:
            await Context().run(asyncio.create_task, begin_from_an_empty_context(depth - 1))
        with pytest.raises(RuntimeError, match="a task of the program raised SystemExit: 6"):
            await Context().run(asyncio.create_task, leave())

    async def work() -> None:
        let_no_program_end(asyncio.get_running_loop())
        await run_program(begin_from_an_empty_context, 1)

    run_in_a_loop(work())


def test_a_program_whose_row_is_given_up_ends_with_all_that_it_began(run_directory, engines, text_pair, monkeypatch):
    monkeypatch.setattr(some_programs, "BEGUN", begun := asyncio.Queue())
    monkeypatch.setattr(some_programs, "GIVEN_UP", given_up := [])
    settings = ProgramSettings(function=f"{SOME}:waits_in_a_task")
    rows = ProgramRows(settings, settings_of(text_pair), run_directory, engines().loop, engines().codec)
    encoded = [rows.encode(row, ordinal) for ordinal, row in enumerate(ROWS)]

    async def work() -> None:
        unit = asyncio.create_task(rows.finish(encoded))
        prompts = {await begun.get() for _ in ROWS}
        unit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unit
        assert set(given_up) == prompts == {row.prompt for row in ROWS}

    run_in_a_loop(work())
    assert all(sample.error is None for row in encoded for sample in row.samples)


def test_a_task_that_is_cancelled_before_its_first_step_leaves_no_warning():
    async def program() -> None:
        task = asyncio.create_task(leave())
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    async def work() -> None:
        let_no_program_end(asyncio.get_running_loop())
        await run_program(program)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(work())
        gc.collect()
    assert [str(each.message) for each in told] == []
