"""Several callers share one engine."""

import asyncio
import subprocess
import sys
import time

import pytest

from actors.engine.loop import EngineLoop
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from tests.actors.engine.engines import Pair, alone, around_step, sequences, tokens

PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


def test_callers_share_the_slots_and_get_what_they_would_get_alone(text_pair: Pair) -> None:
    engine = Engine.load(*text_pair, EngineOptions(num_slots=4))
    num_running: list[int] = []
    around_step(engine, after=lambda: num_running.append(engine.num_running))
    first, second = sequences(3, PARAMS), sequences(3, PARAMS, first_row=3)

    async def both() -> None:
        loop = EngineLoop(engine)
        await asyncio.gather(loop.finish(first), loop.finish(second))
        await loop.finish([])  # nothing to wait for

    asyncio.run(both())
    assert max(num_running) == 4, "the slots were never full across the two callers"
    assert tokens([*first, *second]) == alone(text_pair, [*first, *second])


@pytest.mark.parametrize("method", ["step", "up_next"])
def test_an_engine_that_fails_fails_all_callers_and_then_works_again(
    text_pair: Pair, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """An engine may also fail before its step, as it says which rows are next."""
    engine = Engine.load(*text_pair)

    def broken(*_: object) -> None:
        raise RuntimeError("a kernel failed")

    async def scenario() -> None:
        loop = EngineLoop(engine)
        with monkeypatch.context() as patch:
            patch.setattr(engine, method, broken)
            waiting = (loop.finish(sequences(2, PARAMS)), loop.finish(sequences(1, PARAMS)))
            results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), timeout=60)
        assert [type(result) for result in results] == [RuntimeError, RuntimeError]
        again = sequences(2, PARAMS)
        await asyncio.wait_for(loop.finish(again), timeout=60)
        assert all(sequence.is_finished for sequence in again)

    asyncio.run(scenario())


def test_a_process_whose_target_is_lost_again_and_again_ends_and_says_why() -> None:
    program = """
import asyncio
from actors.engine.loop import EngineLoop
from decoding import SamplingParams, Sequence
from decoding.engine.token_engine import TargetLostError

class Lost:
    has_work = True
    def submit(self, sequences): pass
    def up_next(self): return set()
    def step(self): raise TargetLostError("over these rows")

asyncio.run(EngineLoop(Lost()).finish([Sequence.create([1], SamplingParams())]))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 70
    assert "target lost cause='over these rows'" in ended.stderr.replace('"', "'")


@pytest.mark.parametrize("prompt", [[], [10_000], list(range(5, 200)) * 2])
def test_a_sequence_that_cannot_run_fails_alone(text_pair: Pair, prompt: list[int]) -> None:
    bad, good = Sequence.create(prompt, PARAMS), sequences(1, PARAMS)[0]
    asyncio.run(EngineLoop(Engine.load(*text_pair)).finish([bad, good]))
    assert (bad.finish_reason, good.finish_reason) == ("error", "length")
    assert bad.error


def test_the_longest_rows_run_first_and_the_samples_of_a_row_together(text_pair: Pair) -> None:
    engine = Engine.load(*text_pair, EngineOptions(num_slots=2))
    short, long = SamplingParams(max_tokens=3, ignore_eos=True), SamplingParams(max_tokens=40, ignore_eos=True)
    rows = [(short, [5, 6]), (long, [7, 8]), (short, [9]), (long, [10] * 20), (short, [11] * 60)]
    asked = [
        Sequence.create(prompt, params, row=row, sample=sample, tag=row)
        for row, (params, prompt) in enumerate(rows)
        for sample in range(2)
    ]
    submitted: list[Sequence] = []
    submit = engine.submit

    def watched(sequences: list[Sequence]) -> None:
        submitted.extend(sequences)
        submit(sequences)

    engine.submit = watched  # type: ignore[method-assign, assignment]
    asyncio.run(EngineLoop(engine).finish(asked))
    assert [(s.tag, s.sample) for s in submitted] == [(row, s) for row in (1, 3, 4, 0, 2) for s in range(2)]
    assert [s.tag for s in asked] == sorted(s.tag for s in asked), "the caller's order is its own"


def test_a_second_unit_fills_the_slots_that_the_first_one_leaves(text_pair: Pair) -> None:
    """While a unit's last rows run, the next unit's rows run beside them."""
    engine = Engine.load(*text_pair, EngineOptions(num_slots=4, drafter="none"))
    rows_of_rounds: list[int] = []
    around_step(engine, after=lambda: rows_of_rounds.append(len(engine.lanes[0].running)))

    def unit(first: int) -> list[Sequence]:
        limits = [20, 4, 4, 4]
        return [
            Sequence.create([5, first + i], SamplingParams(max_tokens=n, ignore_eos=True), row=first + i)
            for i, n in enumerate(limits)
        ]

    async def units() -> None:
        loop = EngineLoop(engine)
        await asyncio.gather(loop.finish(unit(0)), loop.finish(unit(4)))

    asyncio.run(units())
    assert sum(rows_of_rounds) == 2 * (20 + 3 * 4)
    assert rows_of_rounds[:8] == [4] * 8, "slots stood empty at the end of the first unit"


def test_the_statistics_say_how_many_rows_run_and_wait_and_how_long_the_engine_was_busy(text_pair: Pair) -> None:
    engine = Engine.load(*text_pair, EngineOptions(num_slots=2, drafter="none"))
    loop, seen = EngineLoop(engine), []
    around_step(engine, before=lambda: seen.append(loop.stats()))
    started = time.monotonic()
    asyncio.run(loop.finish(sequences(5, PARAMS)))
    elapsed = time.monotonic() - started
    first, late, end = seen[0], seen[1], loop.stats()
    assert (first.num_slots, first.num_running, first.num_waiting) == (2, 0, 5)
    assert (late.num_running, late.num_waiting) == (2, 3)
    assert (end.num_running, end.num_waiting, end.num_out_of_memory) == (0, 0, 0)
    busy = [stats.busy_seconds for stats in (*seen, end)]
    assert busy == sorted(set(busy)), "every step adds to it"
    assert 0 < end.round_seconds < end.busy_seconds < elapsed
