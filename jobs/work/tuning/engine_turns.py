"""Engines that generate in turns: over one target's weights, each with a cache of its own."""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import reduce
from operator import add

from decoding.device import seconds_of
from decoding.engine.engine import Engine
from decoding.sequence import Sequence
from decoding.turns import Pass, Way
from pipeline.counts import Counts

TURN_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class EnginePass(Pass):
    """One repeat of an engine. What is done are tokens, which are counted as long as its rounds are timed."""

    cpu_seconds: float  # of all threads meanwhile
    num_rounds: int
    counts: Counts  # of the rows to their ends
    outputs: list[list[int]]  # of each row


def engine_way(
    make_engine: Callable[[], Engine],
    rows: Callable[[int], list[Sequence]],
    least_rows: int = 1,
    most_seconds: float = float("inf"),
    ends: float = float("inf"),
) -> Way[EnginePass]:
    """Return the way to generate the rows of a repeat by an engine, timed as long as `least_rows` are left.

    After `most_seconds`, or at the time `ends` of `time.monotonic`, it gives up, and its texts are not whole.
    """

    def way(repeat: int) -> Generator[None, None, EnginePass]:
        engine, own = make_engine(), rows(repeat)
        engine.submit(own)
        num_left, num_rounds, seconds, cpu_seconds = len(own), 0, 0.0, 0.0

        def turn() -> None:
            nonlocal num_left, num_rounds
            until = time.perf_counter() + TURN_SECONDS
            while num_left >= least_rows and time.perf_counter() < until:
                num_left -= len(engine.step())
                num_rounds += 1

        def is_in_time() -> bool:
            return not seconds or (seconds < most_seconds and time.monotonic() < ends)

        while num_left >= least_rows and is_in_time():
            cpu_seconds -= time.process_time()
            seconds += seconds_of(turn, engine.target.device)
            cpu_seconds += time.process_time()
            yield
        num_tokens = sum(len(row.output_token_ids) for row in own)
        while engine.has_work and is_in_time():
            engine.step()
        failed = [row.error for row in own if row.error]
        assert not failed, failed[0]
        return EnginePass(
            seconds=seconds,
            done=num_tokens,
            cpu_seconds=cpu_seconds,
            num_rounds=num_rounds,
            counts=reduce(add, map(counts_of, own)),
            outputs=[row.output_token_ids for row in own],
        )

    return way


def counts_of(sequence: Sequence) -> Counts:
    """Return what a finished sequence counted, of which a benchmark computes rates."""
    return Counts(
        num_output_tokens=len(sequence.output_token_ids),
        num_rounds=sequence.num_rounds,
        num_draft_tokens=sequence.num_draft_tokens,
        num_accepted_tokens=sequence.num_accepted_tokens,
    )
