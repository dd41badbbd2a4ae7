"""Asked: a request in flight, with what it has received so far and how it ended."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx2


class Asked:
    """A completion that is being asked for. Belongs to one event loop."""

    def __init__(self, client: httpx2.AsyncClient, body: dict[str, Any]) -> None:
        """Send the request."""
        self.body = body
        self.status: int | None = None
        self.headers: httpx2.Headers | None = None
        self.text = ""
        self.error: dict[str, Any] | None = None  # the answer, or the event that ended the stream
        self.num_events = 0  # of a stream
        self.has_succeeded = False  # a whole body, or a stream to its [DONE]
        self.is_over = False  # nothing more will come
        self._changed = asyncio.Condition()
        self._task = asyncio.create_task(self._ask(client))

    async def end(self) -> None:
        """Return when it is over. Raises what went wrong with the connection."""
        await self._task

    async def reached(self, num_events: int) -> None:
        """Return when `num_events` events of its stream have come, or it is over."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.num_events >= num_events or self.is_over)

    async def leave(self) -> None:
        """Close the connection at once."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _ask(self, client: httpx2.AsyncClient) -> None:
        try:
            async with client.stream("POST", "/v1/completions", json=self.body) as answer:
                self.status, self.headers = answer.status_code, answer.headers
                if answer.status_code == 200 and self.body.get("stream"):
                    async for line in answer.aiter_lines():
                        await self._take(line)
                    return
                whole = json.loads(await answer.aread())
                self.error = whole.get("error")
                if answer.status_code == 200:
                    self.text, self.has_succeeded = whole["choices"][0]["text"], True
        finally:
            self.is_over = True
            async with self._changed:
                self._changed.notify_all()

    async def _take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.has_succeeded = True
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            self.error = event.get("error", self.error)
            self.text += "".join(choice["text"] for choice in event.get("choices", ()))
            self.num_events += 1
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def all_over(asked: Iterable[Asked]) -> AsyncIterator[list[Asked]]:
    """Yield the requests, and leave the block when all of them are over."""
    requests = list(asked)
    try:
        yield requests
        await asyncio.gather(*(one.end() for one in requests))
    finally:
        for one in requests:
            await one.leave()
