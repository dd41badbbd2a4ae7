"""What is measured of an endpoint: throughput, latency, refusals, leaving, and what a killed replica costs."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any

import aiohttp
from ray import serve

from actors.engine.loop import EngineStats
from benchmarks.decoder.corpus import generate
from benchmarks.harness import say
from benchmarks.serving.client import Answer, Client, Row
from decoding.engine.engine import Engine
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence as Sample
from endpoint.deployment import APP_NAME
from pipeline.ray_internals import serve_details
from pipeline.text.codec import TextCodec

_LOOK_EVERY_S = 0.002
_DETAILS_TIMEOUT_S = 30.0
WAYS = ("offline", "whole", "streamed")


@dataclass
class Throughput:
    """Seconds of each repeat for the same rows, each way."""

    num_tokens: int  # of output, of all rows
    seconds: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    share_equal: dict[str, float] = field(default_factory=dict)  # of the rows: the text is the offline one

    def tokens_per_second(self, way: str) -> float:
        """Return tokens per second of the median repeat."""
        return self.num_tokens / median(self.seconds[way])

    def share_of_offline(self, way: str) -> float:
        """Return the median over the repeats of the ratio to the engine alone within each."""
        return median(a / b for a, b in zip(self.seconds["offline"], self.seconds[way], strict=True))


@dataclass(frozen=True)
class Spread:
    """How some seconds are distributed."""

    num: int
    median: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Spread:
        """Return the spread of at least one value."""
        ordered = sorted(seconds)
        return cls(len(ordered), median(ordered), ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], ordered[-1])


class Endpoint:
    """The endpoint that is measured, from outside by a client and from inside by its engine's statistics."""

    def __init__(self, client: Client, capacity: int) -> None:
        """Make an endpoint of one replica, whose slots and queue hold `capacity` requests."""
        self.client, self.capacity = client, capacity
        self._replica = serve.get_deployment_handle("Replica", APP_NAME)

    async def stats(self) -> EngineStats:
        stats: EngineStats = await self._replica.stats.remote()
        return stats

    async def seconds_until(self, num_unfinished: int) -> float:
        """Return the seconds until exactly `num_unfinished` samples are in the engine's slots and queue."""
        started = time.perf_counter()
        while (stats := await self.stats()).num_running + stats.num_waiting != num_unfinished:
            await asyncio.sleep(_LOOK_EVERY_S)
        return time.perf_counter() - started


async def throughput(
    endpoint: Endpoint, engine: Engine, codec: TextCodec, rows: Sequence[Row], repeats: int
) -> Throughput:
    """Measure the rows by the endpoint at saturation, whole and streamed, and by the engine alone, in turns."""
    found, texts = Throughput(sum(row.num_tokens for row in rows)), dict[str, list[str]]()
    for repeat in range(-1, repeats):  # the first one warms up
        for way in random.Random(repeat).sample(WAYS, len(WAYS)):
            started = time.perf_counter()
            if way == "offline":
                texts[way] = _offline(engine, codec, rows)  # in this thread, whose number of threads was set
            else:
                answers = await endpoint.client.ask_all(rows, endpoint.capacity, is_streamed=way == "streamed")
                texts[way] = [_checked(answer).text for answer in answers]
            seconds = time.perf_counter() - started
            which = f"repeat {repeat + 1}/{repeats}" if repeat >= 0 else "warm-up"
            say(f"  {which}: {way} {found.num_tokens / seconds:,.1f} tokens/s")
            if repeat >= 0:
                found.seconds[way].append(seconds)
    found.share_equal = {way: sum(map(str.__eq__, texts[way], texts["offline"])) / len(rows) for way in WAYS}
    return found


async def latency(endpoint: Endpoint, rows: Sequence[Row], at_once: int) -> dict[str, Spread]:
    """Measure streams, `at_once` at a time: to the first token, between chunks, and a token in the mean of a text."""
    answers = await endpoint.client.ask_all(rows, at_once, is_streamed=True)
    events = [_checked(answer).event_seconds for answer in answers]
    gaps = [after - before for seconds in events for before, after in pairwise(seconds)]
    tokens = [(s[-1] - s[0]) / (a.row.num_tokens - 1) for s, a in zip(events, answers, strict=True)]
    return {
        "to the first token": Spread.of(seconds[0] for seconds in events),
        "between chunks": Spread.of(gaps),
        "a token": Spread.of(tokens),
    }


async def refusals(endpoint: Endpoint, rows: Sequence[Row], bursts: int) -> dict[str, Any]:
    """Send bursts of four times what fits; return how many were refused, and how soon. Raises RuntimeError otherwise.

    Each burst follows one request that fits, from which the gate learns how many do.
    """
    refused: list[float] = []
    asked = [_reseeded(rows, 4 * endpoint.capacity, burst) for burst in range(bursts)]
    _checked(await endpoint.client.ask(rows[0], is_streamed=False))
    for number, burst in enumerate(asked, start=1):
        answers = await asyncio.gather(*(endpoint.client.ask(row, is_streamed=False) for row in burst))
        strange = {answer.status for answer in answers} - {200, 429}
        if strange:
            raise RuntimeError(f"an overloaded endpoint answered with {strange}")
        refused += [answer.seconds for answer in answers if answer.status == 429]
        say(f"  burst {number}/{bursts}: {len(burst)} requests, {len(refused)} refused so far")
    if not refused:
        raise RuntimeError("nothing was refused: the requests are too short, or too few at once")
    return {"num_asked": sum(map(len, asked)), "num_refused": len(refused), "seconds": Spread.of(refused)}


async def leaving(endpoint: Endpoint, row: Row, times: int) -> dict[str, Spread]:
    """Measure from a client's leaving until the engine is idle: alone, and as the last of all that fit."""
    alone: list[float] = []
    for number in range(times):
        asking = asyncio.create_task(endpoint.client.ask(replace(row, seed=number), is_streamed=number % 2 == 0))
        await endpoint.seconds_until(1)
        alone.append(await _leave(endpoint, [asking]))
        if (number + 1) % 10 == 0 or number + 1 == times:
            say(f"  {number + 1}/{times} clients have left")
    together: list[float] = []
    for _ in range(max(1, times // 10)):
        rows = _reseeded([row], endpoint.capacity, 0)
        asking_all = [asyncio.create_task(endpoint.client.ask(row, is_streamed=row.seed % 2 == 0)) for row in rows]
        await endpoint.seconds_until(endpoint.capacity)
        together.append(await _leave(endpoint, asking_all))
    return {"one alone": Spread.of(alone), f"{endpoint.capacity} at once": Spread.of(together)}


async def recovery(endpoint: Endpoint, row: Row, exact: str, kills: int) -> dict[str, Any]:
    """Measure from a SIGKILL of the only replica to the next answer, and return what became of a text under way."""
    seconds: list[float] = []
    ends: Counter[str] = Counter()
    for number in range(1, kills + 1):
        began = asyncio.Event()
        stream = asyncio.create_task(endpoint.client.ask(row, is_streamed=True, began=began))
        await began.wait()
        started = time.perf_counter()
        os.kill(_replica_pid(), signal.SIGKILL)
        while (await endpoint.client.ask(replace(row, num_tokens=1), is_streamed=False)).status != 200:
            await asyncio.sleep(0.1)
        seconds.append(time.perf_counter() - started)
        ends[await _how_it_ended(stream, exact)] += 1
        say(f"  kill {number}/{kills}: answered again after {seconds[-1]:.1f} s")
    return {"seconds": Spread.of(seconds), "streams": ends}


def _offline(engine: Engine, codec: TextCodec, rows: Sequence[Row]) -> list[str]:
    samples = [Sample.create(row.prompt, _params(row)) for row in rows]
    generate(engine, samples)
    return [codec.decode(sample.output_token_ids) for sample in samples]


def _params(row: Row) -> SamplingParams:
    return SamplingParams(temperature=row.temperature, max_tokens=row.num_tokens, ignore_eos=True, seed=row.seed)


def _checked(answer: Answer) -> Answer:
    if answer.status != 200 or answer.error is not None or not answer.is_whole:
        raise RuntimeError(f"the endpoint failed: status {answer.status}, {answer.error}")
    return answer


def _reseeded(rows: Sequence[Row], num_rows: int, series: int) -> list[Row]:
    """Return `num_rows` rows, all different."""
    return [replace(rows[index % len(rows)], seed=series * num_rows + index) for index in range(num_rows)]


async def _leave(endpoint: Endpoint, asking: Sequence[asyncio.Task[Answer]]) -> float:
    """Close the connections; the seconds until the engine is idle."""
    for task in asking:
        task.cancel()
    leaving = asyncio.gather(*asking, return_exceptions=True)
    seconds = await endpoint.seconds_until(0)
    await leaving
    return seconds


async def _how_it_ended(stream: asyncio.Task[Answer], exact: str) -> str:
    try:
        end = await stream
    except aiohttp.ClientError:
        return "connection broken"
    if end.error is not None:
        return "error event"
    if not end.is_whole:
        return "cut short"
    return "exact" if end.text == exact else "another text"


def _replica_pid() -> int:
    replicas = serve_details(_DETAILS_TIMEOUT_S)["applications"][APP_NAME]["deployments"]["Replica"]["replicas"]
    (pid,) = [replica["pid"] for replica in replicas if replica["state"] == "RUNNING"]
    return int(pid)
