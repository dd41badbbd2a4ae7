"""Generations that are recalled end at once, and those of other requests and later attempts go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from actors.engine.recall import Recalls

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_only_earlier_attempts_at_the_same_request_are_recalled() -> None:
    recalls, closed = Recalls(), list[str]()

    async def endless(name: str) -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.append(name)

    async def read(call: str, attempt: int, begun: asyncio.Event) -> list[int]:
        with recalls.registered(call, attempt) as recall:
            items = []
            async for item in recall.until(endless(f"{call}{attempt}")):
                items.append(item)
                begun.set()
            return items

    asked = [("a", 1), ("a", 2), ("b", 1), ("", 1)]
    begun = [asyncio.Event() for _ in asked]
    tasks = [asyncio.create_task(read(*each, event)) for each, event in zip(asked, begun, strict=True)]
    await asyncio.gather(*(event.wait() for event in begun))
    assert recalls.recall("a", 2) == 1
    assert await tasks[0] == [1]
    assert closed == ["a1"]
    assert recalls.recall("a", 2) == 0, "it is forgotten when it has ended"
    for task in tasks[1:]:
        assert not task.done()
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_stream_that_is_not_recalled_passes_its_end_and_its_errors_on() -> None:
    async def numbers(fails: bool) -> AsyncIterator[int]:
        yield 1
        if fails:
            raise TimeoutError("its own")
        yield 2

    with Recalls().registered("a", 1) as recall:
        assert [number async for number in recall.until(numbers(False))] == [1, 2]
        with pytest.raises(TimeoutError, match="its own"):
            async for _ in recall.until(numbers(True)):
                pass
        recall.recall()
        assert [number async for number in recall.until(numbers(False))] == []


async def test_a_generation_that_is_recalled_twice_while_it_ends_ends_once_and_so_do_the_others() -> None:
    recalls, begun = Recalls(), asyncio.Event()

    async def slow_to_close() -> AsyncIterator[int]:
        try:
            begun.set()
            await asyncio.Event().wait()
            yield 1
        finally:
            assert recalls.recall("a", 3) == 2
            await asyncio.sleep(0)

    async def endless() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 1

    async def read(attempt: int, stream: AsyncIterator[int]) -> list[int]:
        with recalls.registered("a", attempt) as recall:
            return [item async for item in recall.until(stream)]

    tasks = [asyncio.create_task(read(1, slow_to_close())), asyncio.create_task(read(2, endless()))]
    await begun.wait()
    assert recalls.recall("a", 3) == 2
    assert await asyncio.gather(*tasks) == [[], []]


async def test_a_generation_that_reaches_the_engine_after_its_recall_writes_nothing() -> None:
    recalls = Recalls()
    assert recalls.recall("a", 2) == 0

    async def one() -> AsyncIterator[int]:
        yield 1

    for attempt, written in ((1, []), (2, [1])):
        with recalls.registered("a", attempt) as recall:
            assert [item async for item in recall.until(one())] == written
