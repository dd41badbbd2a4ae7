"""Programs that raise or cancel what ends an event loop, were it not held back; and a program that is any of them."""

import asyncio
from contextvars import Context, copy_context
from typing import Any

from tests.actors.programs import some_programs, wrong_programs

_TASK_EXITS = "the program failed: a task of the program raised SystemExit: 5 (line "
_CANCELLED = "the program failed: CancelledError: it cancelled its own task, or awaited one that was cancelled"

# Words of the message of the error row, whose stage is "program". None: the row is written.
HOSTILE: dict[str, str | None] = {
    "exits": "the program failed: SystemExit: 3 (line ",
    "interrupts": "the program failed: KeyboardInterrupt (line ",
    "raises_a_base_exception": "the program failed: not even an Exception (line ",
    "raises_a_base_group": "the program failed: some (2 sub-exceptions), the first: SystemExit: 3 (line ",
    "recurses": "the program failed: maximum recursion depth exceeded",
    "exits_in_a_task": _TASK_EXITS,
    "interrupts_in_a_task": "the program failed: a task of the program raised KeyboardInterrupt (line ",
    "exits_in_a_group": f"(1 sub-exception), the first: {_TASK_EXITS.removeprefix('the program failed: ')}",
    "exits_in_a_task_of_a_task": _TASK_EXITS,
    "exits_in_a_task_of_a_shared_context": _TASK_EXITS,
    "exits_in_a_task_with_what_has_no_words": "the program failed: a task of the program raised SystemExit (line ",
    "exits_in_a_task_of_a_tool": _TASK_EXITS,
    "leaves_a_task_that_exits": None,
    "catches_the_exit_of_a_task": None,
    "cancels_itself": f"{_CANCELLED} (line ",
    "cancels_its_task": f"{_CANCELLED} (line ",
    "cancels_its_task_at_its_end": _CANCELLED,
    "cancels_its_task_in_a_generation": f"{_CANCELLED} (line ",
    "is_cancelled_by_its_task": f"{_CANCELLED} (line ",
    "cancels_its_task_and_goes_on": None,
    "tool_exits": "the program failed: the tool raised SystemExit: 4 (line ",
    "tool_interrupts": "the program failed: the tool raised KeyboardInterrupt (line ",
    "async_tool_exits": "the program failed: SystemExit: 4 (line ",
    "tool_exits_beside_another": "the program failed: the tool raised SystemExit: 4",
    "async_tool_exits_beside_another": "the program failed: a task of the program raised SystemExit: 4",
    "tool_stops": "the program failed: the tool raised StopIteration: no more (line ",
}


async def hostile(generate: Any, row: dict[str, Any]) -> Any:
    """Do what the row's column `does` names, of what programs do."""
    does = row["does"]
    modules = (wrong_programs, some_programs)
    program = globals()[does] if does in HOSTILE else next(vars(each)[does] for each in modules if hasattr(each, does))
    return await program(generate, row)


async def exits(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    raise SystemExit(3)


async def interrupts(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    raise KeyboardInterrupt


async def raises_a_base_exception(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    raise BaseException("not even an Exception")


async def raises_a_base_group(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    raise BaseExceptionGroup("some", [SystemExit(3), KeyboardInterrupt()])


async def recurses(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    await recurses(_nothing, row)


async def _nothing(prompt: str) -> None:
    pass


async def exits_in_a_task(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    await asyncio.create_task(_exit_later())


async def _exit_later() -> None:
    await asyncio.sleep(0)
    raise SystemExit(5)


async def interrupts_in_a_task(generate: Any, row: dict[str, Any]) -> None:
    await asyncio.gather(generate.branch()(row["prompt"]), _interrupt())


async def _interrupt() -> None:
    raise KeyboardInterrupt


async def exits_in_a_group(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    async with asyncio.TaskGroup() as group:
        group.create_task(_exit_later())
        group.create_task(asyncio.Event().wait())


async def exits_in_a_task_of_a_task(generate: Any, row: dict[str, Any]) -> None:
    async def begin_another() -> None:
        await asyncio.create_task(_exit_later())

    await generate(row["prompt"])
    await asyncio.create_task(begin_another(), context=Context())


async def exits_in_a_task_of_a_shared_context(generate: Any, row: dict[str, Any]) -> None:
    asks, shared = asyncio.Event(), copy_context()

    async def ask() -> None:
        asks.set()
        await generate.branch()(row["prompt"], {"max_tokens": 60, "ignore_eos": True})

    async def begin_another_meanwhile() -> None:
        await asks.wait()
        await asyncio.create_task(_exit_later())

    await asyncio.gather(*(asyncio.create_task(each(), context=shared) for each in (begin_another_meanwhile, ask)))


async def exits_in_a_task_with_what_has_no_words(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    await asyncio.create_task(wrong_programs.exits_with_what_has_no_words(generate.branch(), row))


async def exits_in_a_task_of_a_tool(generate: Any, row: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()

    def begin_task_from_the_thread() -> None:
        asyncio.run_coroutine_threadsafe(_exit_later(), loop).result()

    await generate(row["prompt"])
    await generate.call(begin_task_from_the_thread)


async def leaves_a_task_that_exits(generate: Any, row: dict[str, Any]) -> bool:
    left = asyncio.create_task(_exit_later())
    await generate(row["prompt"])
    return left.done()


async def catches_the_exit_of_a_task(generate: Any, row: dict[str, Any]) -> str:
    await generate(row["prompt"])
    try:
        await asyncio.create_task(_exit_later())
    except RuntimeError as error:
        return str(error)
    return "nothing"


async def cancels_itself(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    raise asyncio.CancelledError


async def cancels_its_task(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    _own_task().cancel()
    await asyncio.sleep(0)


def _own_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def cancels_its_task_at_its_end(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    _own_task().cancel()


async def cancels_its_task_in_a_generation(generate: Any, row: dict[str, Any]) -> None:
    asyncio.get_running_loop().call_soon(_own_task().cancel)
    await generate(row["prompt"], {"max_tokens": 60, "ignore_eos": True})


async def is_cancelled_by_its_task(generate: Any, row: dict[str, Any]) -> None:
    own = _own_task()

    async def cancel() -> None:
        own.cancel()

    await generate(row["prompt"])
    await asyncio.gather(cancel(), asyncio.Event().wait())


async def cancels_its_task_and_goes_on(generate: Any, row: dict[str, Any]) -> str:
    _own_task().cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return str((await generate(row["prompt"])).text)
    return "not cancelled"


async def tool_exits(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    await generate.call(_exit)


def _exit() -> None:
    raise SystemExit(4)


async def tool_interrupts(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    await generate.call(_interrupt_at_once)


def _interrupt_at_once() -> None:
    raise KeyboardInterrupt


async def async_tool_exits(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    await generate.call(_exit_async)


async def _exit_async() -> None:
    _exit()


async def tool_exits_beside_another(generate: Any, row: dict[str, Any]) -> None:
    await asyncio.gather(generate.branch()(row["prompt"]), generate.branch().call(_exit))


async def async_tool_exits_beside_another(generate: Any, row: dict[str, Any]) -> None:
    await asyncio.gather(generate.branch()(row["prompt"]), generate.branch().call(_exit_async))


async def tool_stops(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    await generate.call(_stop)


def _stop() -> None:
    raise StopIteration("no more")
