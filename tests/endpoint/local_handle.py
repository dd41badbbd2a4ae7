"""The handle of a Ray Serve deployment that has one replica, which is in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from actors.engine.requests import Generation
from actors.workers.replica import Replica


class LocalHandle:
    """What `Replicas` ask of a handle."""

    def __init__(self, replica: Replica) -> None:
        self.replica, self.generate = replica, self

    def options(self, stream: bool) -> LocalHandle:
        return self

    def remote(self, generation: Generation) -> Items:
        return Items(self.replica.generate(generation))

    def broadcast(self, method: str, *asked: Any) -> LocalHandle:
        getattr(self.replica, method)(*asked)
        return self

    async def results_async(self, **_: Any) -> list[Any]:
        return []

    def __getattr__(self, method: str) -> Any:
        return _Method(getattr(self.replica, method))


class _Method:
    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def remote(self, *asked: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._call(*asked))


class Items:
    """What a replica yields, which writes on whether the caller reads it or not, as under Ray."""

    def __init__(self, items: AsyncIterator[Any]) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.ensure_future(self._read(items))

    async def _read(self, items: AsyncIterator[Any]) -> None:
        try:
            async for item in items:
                # Each delta alone, else a machine that does much else would have few and long events.
                for each in [[delta] for delta in item] if isinstance(item, list) else [item]:
                    self._queue.put_nowait(each)
        finally:
            self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (item := await self._queue.get()) is not None:
            yield item
        await self._task

    def cancel(self) -> None:
        self._task.cancel()
