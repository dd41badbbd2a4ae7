"""What is measured of an endpoint: throughput, latency and refusals."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.decoder.corpus import generate
from benchmarks.harness import say
from benchmarks.serving.client import Answer, Client, Row
from decoding.engine.engine import Engine
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence as Sample
from pipeline.text.codec import TextCodec

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


@dataclass(frozen=True)
class Endpoint:
    """The endpoint that is measured: a client of it, and how many requests the slots and queue of its replica hold."""

    client: Client
    capacity: int


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
