"""Origin: what all processes that are asked for one answer have in common. The gate gives it to each of them.

An ingress that is asked after another one was lost writes the whole answer anew, since that is a function of the
request and of its origin. It sends only what the client does not have: beside the events of a stream an ingress tells
the gate how far their samples have come (`REACHED`, a key of the message with the events), and the gate tells the next
one (`endpoint/service/resumption.py`).

Owners: what belongs to an API key has a name that does not tell the key.

Deadline: the time by which a request must be done. Every wait of the ingress for it ends then. What is cancelled there
is cancelled in the engine. A replica ends by itself only what a lost ingress has left.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Scope

EXTENSION, REACHED = "dray.origin", "dray.reached"
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Origin:
    """When a request came, what its seeds and ids are drawn from, and what was done for it. No client can write it."""

    created_ns: int = field(default_factory=time.time_ns)
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    used_s: float = 0.0  # of the request's time, by processes that were asked before
    attempt: int = 1  # how many ingresses have been asked, this one among them
    reached: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)  # by samples of the stream that the client has

    @property
    def created(self) -> int:
        """The second in which the request came."""
        return self.created_ns // 10**9

    @property
    def call(self) -> str:
        """A name of the request that is the same in all attempts, and that no client can know."""
        return f"{self.draw('call', 2**128):032x}"

    def draw(self, what: str, below: int) -> int:
        """Return a number below a power of two that is the same each time, and that no client can know."""
        return int.from_bytes(sha256(self.secret + what.encode()).digest()) % below


def origin_of(scope: Scope) -> Origin:
    """Return the origin that the gate has given to a request, or a new one."""
    origin: Origin | None = (scope.get("extensions") or {}).get(EXTENSION)
    return origin or Origin()


def owner_of(key: bytes | None) -> str:
    """Return the name of what belongs to a key, a digest; "open" for an endpoint without keys."""
    return "open" if key is None else sha256(b"batches of " + key).hexdigest()[:32]


def owner_of_request(request: Request) -> str:
    """Return the owner that the edge has found for a request."""
    owner: str = getattr(request.state, "owner", owner_of(None))
    return owner


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
