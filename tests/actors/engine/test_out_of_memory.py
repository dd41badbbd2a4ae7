"""When memory runs out: half the slots, the same texts; a row that is too large even alone fails alone."""

import asyncio
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from actors.engine.loop import EngineLoop
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.device import is_out_of_memory
from decoding.engine.rounds.admission import Admission
from decoding.engine.scored_text import ScoredText
from tests.actors.engine.engines import Pair, alone, sequences, tokens

PARAMS = SamplingParams(max_tokens=12, temperature=0.8, ignore_eos=True)


def no_memory(*_: object) -> None:
    raise MemoryError


def loop_of(pair: Pair, num_slots: int) -> EngineLoop:
    return EngineLoop(Engine.load(*pair, EngineOptions(num_slots=num_slots)))


def test_an_engine_that_is_too_large_goes_on_with_half_the_slots_and_writes_the_same(
    text_pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step, sizes, lengths = Engine.step, [], []

    def too_large(self: Engine) -> list[Sequence]:
        finished = step(self)
        sizes.append(self.options.num_slots)
        if self.num_running > 2 and self.in_flight[0].num_rounds >= 2:
            lengths.append([len(sequence.output_token_ids) for sequence in running])
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return finished

    running = sequences(9, PARAMS)
    loop, expected = loop_of(text_pair, 8), alone(text_pair, running)
    monkeypatch.setattr(Engine, "step", too_large)
    asyncio.run(asyncio.wait_for(loop.finish(running), timeout=120))
    assert tokens(running) == expected
    assert sorted(set(sizes)) == [2, 4, 8]
    assert all(len(sequence.output_token_ids) == 12 for sequence in running)
    counted = [sequence.num_accepted_tokens + sequence.num_rounds for sequence in running]
    assert counted == [12] * 9, "a token was written twice, or not counted"
    assert max(lengths[0]) > 1, "no row had tokens to keep"
    assert all(before <= after for before, after in zip(*lengths, strict=True)), "tokens were thrown away"
    stats = loop.stats()
    assert (stats.num_slots, stats.num_out_of_memory) == (2, 2)
    in_lanes = sum(lane.rounds.seconds for lane in loop.engine.lanes)
    assert stats.round_seconds > in_lanes > 0, "rounds of the lanes before are forgotten"
    assert [message.partition(" running=")[0] for message in caplog.messages if message.startswith("out of")] == [
        "out of memory slots=8 going_on_with=4",
        "out of memory slots=4 going_on_with=2",
    ]


def test_a_row_that_is_too_large_even_alone_fails_alone(text_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Engine.step
    running = sequences(5, PARAMS)
    giant = running[3] = Sequence.create([5, 6, 10], replace(PARAMS, max_tokens=100), row=3)

    def too_large(self: Engine) -> list[Sequence]:
        finished = step(self)
        if giant in self.in_flight:
            raise MemoryError
        return finished

    loop, expected = loop_of(text_pair, 4), alone(text_pair, sequences(5, PARAMS))
    monkeypatch.setattr(Engine, "step", too_large)
    asyncio.run(asyncio.wait_for(loop.finish(running), timeout=120))
    assert giant.finish_reason == "error"
    assert "memory ran out although nothing else ran" in str(giant.error)
    others = [row for row in range(5) if row != 3]
    assert [running[row].output_token_ids for row in others] == [expected[row] for row in others]


def test_an_engine_that_cannot_be_resized_fails_all_callers_and_tries_again_for_the_next(
    text_pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def one_after_the_other() -> None:
        with pytest.raises(MemoryError):
            await loop.finish(sequences(3, PARAMS))
        monkeypatch.undo()
        await loop.finish(later)  # of a unit that was being read meanwhile

    later = sequences(2, PARAMS)
    loop, expected = loop_of(text_pair, 4), alone(text_pair, later)
    monkeypatch.setattr(Engine, "step", no_memory)
    monkeypatch.setattr(Engine, "_open", no_memory)
    asyncio.run(asyncio.wait_for(one_after_the_other(), timeout=60))
    assert "engine not resized" in caplog.text
    assert tokens(later) == expected


def make_texts(number: int = 5) -> list[ScoredText]:
    return [ScoredText.whole([5, 6, 7, 8, 9 + index], 2) for index in range(number)]


def score_only_with(most_slots: int, monkeypatch: pytest.MonkeyPatch, giant: ScoredText | None = None) -> None:
    """Let memory last for texts that are scored, or for this one, beside `most_slots` slots only."""
    score = Admission._score

    def too_large(self: Admission, rows: list[Any]) -> None:
        wanted = None if giant is None else giant._rows
        is_giant = wanted is None or any(resident.sequence in wanted for resident, _ in rows)
        if len(self._residents) > most_slots and is_giant:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        score(self, rows)

    monkeypatch.setattr(Admission, "_score", too_large)


def test_memory_that_runs_out_over_scored_texts_halves_the_slots_and_changes_nothing_else(
    text_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, loop = sequences(9, PARAMS), loop_of(text_pair, 8)
    expected, undisturbed, texts = alone(text_pair, running), make_texts(), make_texts()
    loop.engine.score(undisturbed)
    score_only_with(2, monkeypatch)

    async def all_at_once() -> None:
        await asyncio.gather(loop.finish(running), loop.score(texts[:2]), loop.score(texts[2:]))

    asyncio.run(asyncio.wait_for(all_at_once(), timeout=120))
    found, wanted = ([entry.logprob for text in each for entry in text.scores[0]] for each in (texts, undisturbed))
    assert found == pytest.approx(wanted, abs=1e-4)
    assert all(len(text.scores[0]) == 4 for text in texts)
    assert tokens(running) == expected
    assert (loop.stats().num_slots, loop.stats().num_out_of_memory) == (2, 2)


def test_a_scored_text_that_is_too_large_even_alone_fails_alone(
    text_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, loop, texts = sequences(3, PARAMS), loop_of(text_pair, 2), make_texts()
    expected = alone(text_pair, running)
    score_only_with(0, monkeypatch, giant=texts[3])

    async def both() -> None:
        await asyncio.gather(loop.finish(running), loop.score(texts))

    asyncio.run(asyncio.wait_for(both(), timeout=120))
    assert [text.error is None for text in texts] == [True, True, True, False, True]
    assert "memory ran out although nothing else ran; shorten the text" in str(texts[3].error)
    assert tokens(running) == expected
    assert (loop.stats().num_slots, loop.stats().num_out_of_memory) == (1, 2)


def test_rows_beside_scored_texts_fail_with_them_where_the_engine_cannot_be_resized(
    text_pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = loop_of(text_pair, 4)
    score_only_with(2, monkeypatch)
    monkeypatch.setattr(Engine, "_open", no_memory)

    async def both() -> list[object]:
        finishing = asyncio.ensure_future(loop.finish(sequences(6, PARAMS)))
        scoring = asyncio.ensure_future(loop.score(make_texts()))
        return await asyncio.gather(finishing, scoring, return_exceptions=True)

    failures = asyncio.run(asyncio.wait_for(both(), timeout=60))
    assert [type(failure) for failure in failures] == [torch.OutOfMemoryError] * 2
    assert "engine not resized" in caplog.text
    assert (loop.stats().num_running, loop.stats().num_waiting, loop.stats().num_out_of_memory) == (0, 0, 1)
    assert not loop.engine.has_work


def test_a_caller_that_leaves_while_the_engine_is_resized_leaves_a_whole_one(
    text_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, loop = sequences(3, PARAMS), loop_of(text_pair, 4)
    expected = alone(text_pair, running)
    score_only_with(2, monkeypatch)
    resize, has_begun, may_go_on = Engine.resize, threading.Event(), threading.Event()

    def slow(self: Engine, num_slots: int) -> None:
        has_begun.set()
        assert may_go_on.wait(60)
        resize(self, num_slots)

    monkeypatch.setattr(Engine, "resize", slow)

    async def scenario() -> None:
        scoring = asyncio.ensure_future(loop.score(make_texts()))
        await asyncio.to_thread(has_begun.wait, 60)
        scoring.cancel()
        finishing = asyncio.ensure_future(loop.finish(running))
        await asyncio.wait([scoring])
        may_go_on.set()
        await finishing

    asyncio.run(asyncio.wait_for(scenario(), timeout=120))
    assert tokens(running) == expected
    assert loop.stats().num_slots == 2
    assert not loop.engine.has_work


def test_memory_that_runs_out_is_told_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as real:
        torch.empty(1 << 60)
    assert is_out_of_memory(real.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("expected scalar type Float"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_a_process_whose_engine_hangs_ends_and_says_where() -> None:
    program = """
import threading
from actors.engine.watchdog import Watchdog
watchdog = Watchdog(0.2)
for _ in range(3):
    with watchdog:
        pass
with watchdog:
    threading.Event().wait()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 70
    assert "engine hung timeout_s=0.2" in ended.stderr
    assert "threading.py" in ended.stderr
