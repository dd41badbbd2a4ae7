"""SharedLock: a lock that many tasks hold together, or one task alone (a readers-writer lock)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class SharedLock:
    """A lock of one event loop. A task that waits for it alone is not overtaken by tasks that come later."""

    def __init__(self) -> None:
        """Make a free lock."""
        self._changed = asyncio.Condition()
        self._num_holders = 0
        self._num_waiting = 0
        self._is_exclusive = False

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Hold the lock together with other tasks."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_exclusive and not self._num_waiting)
            self._num_holders += 1
        try:
            yield
        finally:
            await self._release()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the lock alone."""
        async with self._changed:
            self._num_waiting += 1
            try:
                await self._changed.wait_for(lambda: not self._num_holders)
            finally:
                self._num_waiting -= 1
                self._changed.notify_all()  # tasks that came later may enter if this one gave up
            self._num_holders, self._is_exclusive = 1, True
        try:
            yield
        finally:
            self._is_exclusive = False
            await self._release()

    async def _release(self) -> None:
        async with self._changed:
            self._num_holders -= 1
            self._changed.notify_all()
