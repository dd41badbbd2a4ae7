"""Recall: the way to end one generation from outside, as its caller is lost and another one asks for the same."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from math import inf
from typing import TypeVar

from actors.engine.requests import Generation

_Item = TypeVar("_Item")


class Recall:
    """The way to end one generation from another task of its event loop, and the time at which it ends by itself."""

    def __init__(self, left_s: float = inf) -> None:
        """End it after `left_s` seconds, as its caller does, unless that is lost."""
        self._ends_at = time.monotonic() + left_s  # 0: it was recalled
        self._wait: asyncio.Timeout | None = None  # for the next item

    def recall(self) -> None:
        """End it, now if its next item is waited for."""
        self._ends_at = 0.0
        if self._wait is not None:
            self._wait.reschedule(0.0)
            self._wait = None

    async def until(self, stream: AsyncIterator[_Item]) -> AsyncIterator[_Item]:
        """Yield what the stream yields until it ends or its time is over. The stream is closed by its opener."""
        while (left_s := self._ends_at - time.monotonic()) > 0:
            wait = asyncio.timeout(None if left_s == inf else left_s)
            try:
                async with wait as self._wait:
                    item = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if wait.expired():
                    return
                raise
            finally:
                self._wait = None
            yield item


class Recalls:
    """The generations of one engine that can be recalled, by the calls that they are for."""

    def __init__(self) -> None:
        self._recalls: dict[str, tuple[int, Recall]] = {}  # with the number of the attempt

    @contextmanager
    def registered(self, generation: Generation, after_s: float) -> Iterator[Recall]:
        """Let a generation be recalled while the block runs; it ends `after_s` seconds after its request's time."""
        mine = generation.attempt, Recall(generation.left_s + after_s)
        self._recalls[generation.call] = mine
        try:
            yield mine[1]
        finally:
            if self._recalls.get(generation.call) is mine:
                del self._recalls[generation.call]

    def recall(self, call: str, attempt: int) -> None:
        """End what was begun for a call before this attempt."""
        number, recall = self._recalls.get(call, (attempt, None))
        if recall is not None and number < attempt:
            recall.recall()
