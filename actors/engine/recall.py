"""Recalls: generations that are ended from outside, as their caller is lost and another one asks for the same."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TypeVar

_MOST_REMEMBERED = 1024  # recalls
_Item = TypeVar("_Item")


class Recall:
    """The way to end one generation from another task of the same event loop."""

    def __init__(self) -> None:
        self._is_recalled = False
        self._wait: asyncio.Timeout | None = None  # for the next item

    def recall(self) -> None:
        """End it, now if its next item is waited for."""
        if not self._is_recalled and self._wait is not None:
            self._wait.reschedule(0.0)
        self._is_recalled = True

    async def until(self, stream: AsyncIterator[_Item]) -> AsyncIterator[_Item]:
        """Yield what the stream yields until it ends or is recalled. The caller that opened the stream closes it."""
        while not self._is_recalled:
            try:
                async with asyncio.timeout(None) as self._wait:
                    item = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if self._is_recalled:
                    return
                raise
            finally:
                self._wait = None
            yield item


class Recalls:
    """The generations of one engine, by the request that they are for and by the number of the attempt at it."""

    def __init__(self) -> None:
        self._recalls: dict[tuple[str, int], Recall] = {}
        self._newest: OrderedDict[str, int] = OrderedDict()  # attempts at requests of which earlier ones were recalled

    @contextmanager
    def registered(self, call: str, attempt: int) -> Iterator[Recall]:
        """Let the generation of an attempt be recalled while the block runs, if its request has a name."""
        recall = Recall()
        if not call:
            yield recall
            return
        if attempt < self._newest.get(call, 0):  # it waited for this engine while it was recalled
            recall.recall()
        self._recalls[call, attempt] = recall
        try:
            yield recall
        finally:
            if self._recalls.get((call, attempt)) is recall:
                del self._recalls[call, attempt]

    def recall(self, call: str, attempt: int) -> int:
        """End what was begun for a request before this attempt, and return how many generations that were."""
        self._newest[call] = max(attempt, self._newest.pop(call, 0))
        if len(self._newest) > _MOST_REMEMBERED:
            self._newest.popitem(last=False)
        earlier = [recall for (of, number), recall in self._recalls.items() if of == call and number < attempt]
        for recall in earlier:
            recall.recall()
        return len(earlier)
