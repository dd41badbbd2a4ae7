"""Sequences in the background get the slots that others leave."""

import asyncio
from threading import Event

import pytest

from actors.engine.backlog import Backlog
from actors.engine.loop import EngineLoop
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from tests.actors.engine.engines import Pair, alone, around_step, sequences, tokens

PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


@pytest.fixture
def engine(text_pair: Pair) -> Engine:
    return Engine.load(*text_pair, EngineOptions(num_slots=4))


def test_requests_that_come_later_run_before_the_background(text_pair: Pair) -> None:
    # Without drafts rows of one length take the same rounds, so that they end in the order in which they began.
    engine = Engine.load(text_pair[0], None, EngineOptions(num_slots=4, drafter="none"))
    background, online = sequences(12, PARAMS), sequences(4, PARAMS, first_row=12)
    ended: list[Sequence] = []
    has_begun, all_queued = Event(), Event()

    def wait_for_all() -> None:  # in the engine's thread, so that no load of the machine lets a row end before
        has_begun.set()
        all_queued.wait()

    around_step(engine, before=wait_for_all)

    async def scenario() -> None:
        loop = EngineLoop(engine, num_reserved=1)

        async def note(sequence: Sequence, *, in_background: bool) -> None:
            await loop.finish([sequence], in_background=in_background)
            ended.append(sequence)

        async with asyncio.TaskGroup() as tasks:
            for sequence in background:
                tasks.create_task(note(sequence, in_background=True))
            await asyncio.to_thread(has_begun.wait)
            for sequence in online:
                tasks.create_task(note(sequence, in_background=False))
            await asyncio.sleep(0)  # in which they queue
            all_queued.set()

    asyncio.run(scenario())
    last_online = max(ended.index(sequence) for sequence in online)
    assert last_online <= 6, "at most the three that had begun ended before"
    assert tokens([*background, *online]) == alone(text_pair, [*background, *online])


def test_the_background_leaves_the_slots_that_are_reserved_and_fills_the_others(engine: Engine) -> None:
    num_running: list[int] = []
    around_step(engine, after=lambda: num_running.append(engine.num_running))

    async def scenario() -> None:
        await EngineLoop(engine).finish(sequences(9, PARAMS), in_background=True)

    asyncio.run(scenario())
    assert max(num_running) == 3


def test_a_background_that_is_left_gives_its_places_back(engine: Engine) -> None:
    async def scenario() -> None:
        loop = EngineLoop(engine)
        left = asyncio.create_task(loop.finish(sequences(9, PARAMS), in_background=True))
        while not engine.in_flight:
            await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        again = sequences(5, PARAMS, first_row=20)
        await asyncio.wait_for(loop.finish(again, in_background=True), 60)
        assert all(len(sequence.output_token_ids) == 8 for sequence in again)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("num_reserved", "num_others", "expected"), [(None, 0, 6), (0, 0, 8), (8, 0, 1), (None, 8, 0), (0, 5, 3), (9, 1, 1)]
)
def test_places_of_the_background(num_reserved: int | None, num_others: int, expected: int) -> None:
    backlog = Backlog(num_reserved)
    backlog.add(sequences(20, PARAMS))
    assert len(backlog.take(8, num_others)) == expected
