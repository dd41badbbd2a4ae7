"""A client of the endpoint that keeps time, and as light as one can be: it runs on the cores of what it measures."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

_EVENT, _DONE = b"data: ", b"data: [DONE]\n"


@dataclass(frozen=True)
class Row:
    """A prompt and how to go on from it: the same for the endpoint and for the engine alone."""

    prompt: tuple[int, ...]
    seed: int
    num_tokens: int  # of output; no end token ends it before
    temperature: float

    def body(self, *, is_streamed: bool) -> dict[str, Any]:
        return {
            "prompt": list(self.prompt),
            "seed": self.seed,
            "max_tokens": self.num_tokens,
            "temperature": self.temperature,
            "ignore_eos": True,
            "stream": is_streamed,
        }


@dataclass
class Answer:
    """What came back, and when: seconds since the request was sent."""

    row: Row
    status: int = 0
    text: str = ""
    error: dict[str, Any] | None = None  # the answer, or the event that ended a stream
    is_whole: bool = False  # a stream to its [DONE], or another body
    seconds: float = 0.0  # until its end
    event_seconds: list[float] = field(default_factory=list)  # of each event that has text


class Client:
    """Asks as much at once as it is told to. Belongs to one event loop."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        """Make a client; `session` has the address."""
        self._session = session

    async def ask(self, row: Row, *, is_streamed: bool) -> Answer:
        """Send one row. Raises aiohttp.ClientError if the answer ends early."""
        answer, started = Answer(row), time.perf_counter()
        async with self._session.post("/v1/completions", json=row.body(is_streamed=is_streamed)) as response:
            answer.status = response.status
            if is_streamed and response.status == 200:
                async for line in response.content:
                    _take(answer, line, time.perf_counter() - started)
            else:
                body = await response.json()
                answer.error, answer.is_whole = body.get("error"), True
                answer.text = "".join(choice["text"] for choice in body.get("choices", ()))
            answer.seconds = time.perf_counter() - started
        return answer

    async def ask_all(self, rows: Sequence[Row], at_once: int, *, is_streamed: bool) -> list[Answer]:
        """Send all rows, `at_once` of them at a time."""
        room = asyncio.Semaphore(at_once)

        async def ask(row: Row) -> Answer:
            async with room:
                return await self.ask(row, is_streamed=is_streamed)

        return await asyncio.gather(*map(ask, rows))


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Client]:
    """Yield a client without limits of its own."""
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        yield Client(session)


def _take(answer: Answer, line: bytes, seconds: float) -> None:
    if line == _DONE:
        answer.is_whole = True
    elif line.startswith(_EVENT):
        event = json.loads(line[len(_EVENT) :])
        answer.error = event.get("error", answer.error)
        if text := "".join(choice["text"] for choice in event.get("choices", ())):
            answer.text += text
            answer.event_seconds.append(seconds)
