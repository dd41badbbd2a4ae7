"""SharedLock: a lock that many tasks hold together, or one task alone (a readers-writer lock)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class SharedLock:
    """A lock of one event loop. A task that waits for it alone is not overtaken by tasks that come later."""

    def __init__(self) -> None:
        self._entry = asyncio.Lock()  # wakes its waiters in the order in which they came
        self._num_holders = 0
        self._is_free = asyncio.Event()
        self._is_free.set()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Hold the lock together with other tasks."""
        async with self._entry:
            self._num_holders += 1
            self._is_free.clear()
        try:
            yield
        finally:
            self._num_holders -= 1
            if not self._num_holders:
                self._is_free.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the lock alone: keep other tasks from entering, and wait until those inside have left."""
        async with self._entry:
            await self._is_free.wait()
            yield
