"""Deadline: the time by which a request must be done. Every wait of the ingress for it ends then.

What is cancelled there is cancelled in the engine. A replica ends by itself only what a lost ingress has left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import TypeVar

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Deadline:
    """A time on this process's clock."""

    timeout_s: float | None = None  # what the request had in all; None: as long as it takes
    ends_at: float = inf  # seconds of this process's monotonic clock

    @classmethod
    def after(cls, timeout_s: float | None, started: float | None = None) -> Deadline:
        """Return the deadline that is `timeout_s` seconds after `started` (monotonic; by default, now)."""
        if timeout_s is None:
            return cls()
        return cls(timeout_s, (time.monotonic() if started is None else started) + timeout_s)

    @property
    def left_s(self) -> float:
        """Seconds until then; 0 when it is over, infinite where there is none."""
        return max(0.0, self.ends_at - time.monotonic())

    @asynccontextmanager
    async def enforced(self) -> AsyncIterator[None]:
        """Cancel what the block awaits when time is up, and raise DeadlineError then; at once if time is up already."""
        if not self.left_s:
            raise DeadlineError(self.timeout_s or 0.0)
        try:
            # Not `wait_for`, whose task may outlive its waiter if that is cancelled twice, as anyio does it.
            async with asyncio.timeout(None if self.left_s == inf else self.left_s) as time_given:
                yield
        except TimeoutError as error:
            if not time_given.expired():
                raise
            raise DeadlineError(self.timeout_s or 0.0) from error

    async def until(self, stream: AsyncIterator[_Item]) -> AsyncIterator[_Item]:
        """Yield what the stream yields. Raises DeadlineError when time is up before it ends."""
        while True:
            try:
                async with self.enforced():
                    item = await anext(stream)
            except StopAsyncIteration:
                return
            yield item


class DeadlineError(TimeoutError):
    """The request took longer than it may."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"the request was not done in {timeout_s:g} s")
        self.timeout_s = timeout_s
