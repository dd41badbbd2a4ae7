"""Rows that are not wanted any more leave the engine to the others."""

import asyncio
from collections.abc import Sequence as Seq

import pytest

from actors.engine.loop import EngineLoop
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from tests.actors.engine.engines import Pair, alone, sequences, tokens

LONG, SHORT = SamplingParams(max_tokens=100, ignore_eos=True), SamplingParams(max_tokens=8, ignore_eos=True)


async def give_up(loop: EngineLoop, unwanted: list[Sequence]) -> None:
    """Wait for these rows until one of them writes, and no longer."""
    waiting = asyncio.ensure_future(loop.finish(unwanted))
    while not any(sequence.num_rounds for sequence in unwanted):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_a_caller_that_gives_up_waiting_frees_the_engine_for_the_others(text_pair: Pair) -> None:
    engine = Engine.load(*text_pair, EngineOptions(num_slots=2, drafter="none"))
    unwanted, wanted = sequences(6, LONG), sequences(2, SHORT)

    async def scenario() -> None:
        loop = EngineLoop(engine)
        await give_up(loop, unwanted)
        await loop.finish(wanted)

    asyncio.run(scenario())
    assert sum(sequence.num_rounds for sequence in unwanted) < LONG.max_tokens, "the engine ran what nobody wanted"
    assert tokens(wanted) == alone(text_pair, wanted)


def test_a_dropped_row_that_has_not_reached_the_engine_never_does(text_pair: Pair) -> None:
    engine = Engine.load(*text_pair, EngineOptions(num_slots=2, drafter="none"))
    unwanted, wanted = sequences(2, LONG), sequences(2, SHORT)

    async def scenario() -> None:
        loop = EngineLoop(engine)
        first = asyncio.ensure_future(loop.finish(wanted))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(loop.finish(unwanted))
        await asyncio.sleep(0)
        second.cancel()
        await first

    asyncio.run(scenario())
    assert all(sequence.is_finished for sequence in wanted)
    assert not any(sequence.num_rounds for sequence in unwanted)


def test_a_dropped_row_that_waits_for_a_slot_ends_and_its_prompt_is_not_read(text_pair: Pair) -> None:
    engine = Engine.load(*text_pair, EngineOptions(num_slots=1, drafter="none"))
    num_read = 0
    prefill = engine.target.prefill

    def counting(slots: Seq[int], token_ids: Seq[Seq[int]], starts: Seq[int] | None = None) -> None:
        nonlocal num_read
        num_read += sum(map(len, token_ids))
        prefill(slots, token_ids, starts)

    engine.target.prefill = counting  # type: ignore[method-assign]
    unwanted = sequences(6, LONG)

    async def scenario() -> None:
        loop = EngineLoop(engine)
        await give_up(loop, unwanted)
        while loop.stats().num_running or loop.stats().num_waiting:
            await asyncio.sleep(0)

    asyncio.run(scenario())
    assert num_read == 2, "prompts were read that nobody wants"
    assert sum(bool(sequence.num_rounds) for sequence in unwanted) == 1
