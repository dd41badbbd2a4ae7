"""Turnstile: many at once, or one alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turnstile:
    """Who comes in `together` shares the room; who comes in `alone` waits until it is empty and keeps others out.

    Nobody who waits to be alone is overtaken by those who come later. Belongs to one event loop.
    """

    def __init__(self) -> None:
        """An empty room."""
        self._changed = asyncio.Condition()
        self._num_inside = 0
        self._num_waiting_alone = 0
        self._is_alone = False

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Be inside with others."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_alone and not self._num_waiting_alone)
            self._num_inside += 1
        try:
            yield
        finally:
            await self._leave()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Be inside with nobody else."""
        async with self._changed:
            self._num_waiting_alone += 1
            try:
                await self._changed.wait_for(lambda: not self._num_inside)
            finally:
                self._num_waiting_alone -= 1
                self._changed.notify_all()  # those who came later may go in if this one gave up
            self._num_inside, self._is_alone = 1, True
        try:
            yield
        finally:
            self._is_alone = False
            await self._leave()

    async def _leave(self) -> None:
        async with self._changed:
            self._num_inside -= 1
            self._changed.notify_all()
