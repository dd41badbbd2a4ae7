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
