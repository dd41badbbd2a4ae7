"""Tokens as they come."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import count
from typing import Any

import pytest

from actors.engine.deltas import Delta
from actors.engine.loop import EngineLoop
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from tests.actors.engine.engines import Pair, alone, around_step, sequences

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=1)


def plain(pair: Pair, num_slots: int = 4) -> Engine:
    return Engine.load(*pair, EngineOptions(num_slots=num_slots, drafter="none"))


async def all_of(loop: EngineLoop, asked: list[Sequence]) -> list[Delta]:
    return [delta async for deltas in loop.stream(asked) for delta in deltas]


@pytest.mark.parametrize("options", [{"drafter": "none"}, {"num_speculative_tokens": 4, "draft_length": "fixed"}])
def test_the_deltas_of_a_sequence_are_its_tokens_and_counts(text_pair: Pair, options: dict[str, Any]) -> None:
    engine, asked = Engine.load(*text_pair, EngineOptions(num_slots=2, **options)), sequences(3, PARAMS)
    deltas = asyncio.run(all_of(EngineLoop(engine), asked))
    for index, sequence in enumerate(asked):
        own = [delta for delta in deltas if delta.index == index]
        assert [token for delta in own for token in delta.token_ids] == sequence.output_token_ids
        assert [entry for delta in own for entry in delta.logprobs] == sequence.logprobs
        assert sum(delta.num_accepted for delta in own) == sequence.num_accepted_tokens
        assert [delta.ending is not None for delta in own] == [False] * (len(own) - 1) + [True]
        ending = own[-1].ending
        assert ending is not None
        assert ending.finish_reason == "length"
        assert sum(bool(delta.token_ids) for delta in own) == sequence.num_rounds
        assert sum(delta.num_drafted for delta in own) == sequence.num_draft_tokens


def test_tokens_come_while_the_sequence_goes_on(text_pair: Pair) -> None:
    async def first() -> None:
        (sequence,) = asked = sequences(1, PARAMS)
        async with aclosing(EngineLoop(plain(text_pair)).stream(asked)) as stream:  # type: ignore[type-var]
            assert await anext(stream) == [], "it has a slot"
            deltas = await anext(stream)
            assert deltas[0].token_ids
            assert not sequence.is_finished

    asyncio.run(first())


@pytest.mark.parametrize(("send_every_s", "max_sent_per_s"), [(1e9, 1e9), (0.0, 1e-9)])
def test_tokens_that_come_too_soon_after_the_last_message_come_with_the_end(
    text_pair: Pair, monkeypatch: pytest.MonkeyPatch, send_every_s: float, max_sent_per_s: float
) -> None:
    monkeypatch.setattr("actors.engine.loop._MAX_SENT_PER_S", max_sent_per_s)

    async def scenario() -> None:
        (sequence,) = asked = sequences(1, PARAMS)
        sent = [deltas async for deltas in EngineLoop(plain(text_pair)).stream(asked, send_every_s)]
        assert [len(deltas) for deltas in sent[:2]] == [0, 1], "it has a slot, and its first tokens are sent at once"
        assert len(sent) == 3
        assert sent[2][-1].ending is not None
        assert [token for deltas in sent for delta in deltas for token in delta.token_ids] == sequence.output_token_ids

    asyncio.run(scenario())


def test_a_sequence_that_cannot_run_ends_its_stream_with_the_error(text_pair: Pair) -> None:
    bad, good = Sequence.create([], PARAMS), sequences(1, PARAMS)[0]
    deltas = asyncio.run(all_of(EngineLoop(plain(text_pair)), [bad, good]))
    endings = {delta.index: delta.ending for delta in deltas if delta.ending is not None}
    assert (endings[0].finish_reason, endings[1].finish_reason) == ("error", "length")
    assert "the prompt has no tokens" in str(endings[0].error)


@pytest.mark.parametrize("how", ["closed", "cancelled"])
def test_a_caller_that_leaves_frees_its_slots_within_a_step_and_no_others(text_pair: Pair, how: str) -> None:
    async def scenario() -> None:
        engine = plain(text_pair, num_slots=3)
        loop, long = EngineLoop(engine), SamplingParams(max_tokens=200, ignore_eos=True)
        steps: list[None] = []
        around_step(engine, before=lambda: steps.append(None))
        stays, leaves = sequences(1, long), sequences(4, long)
        staying = asyncio.ensure_future(loop.finish(stays))
        stream = loop.stream(leaves)
        await anext(stream)
        if how == "closed":
            await stream.aclose()  # type: ignore[attr-defined]
        else:
            is_cancelled = False
            while not is_cancelled:  # tokens may come before it waits
                waiting = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                is_cancelled = waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
        left_at = len(steps)
        while engine.num_running > 1:
            await asyncio.sleep(0)
            assert len(steps) <= left_at + 2, "the slots of who left are still taken"
        assert not staying.done()
        await staying
        assert len(stays[0].output_token_ids) == 200
        assert loop.stats().num_waiting == 0

    asyncio.run(scenario())


def test_an_engine_that_fails_fails_the_stream_after_what_it_wrote(text_pair: Pair) -> None:
    async def scenario() -> None:
        engine = plain(text_pair)
        step, seen = engine.step, list[Delta]()

        def fail_later() -> None:
            if len(seen) > 1:
                raise RuntimeError("a kernel failed")

        around_step(engine, before=fail_later)
        loop = EngineLoop(engine)
        stream = loop.stream(sequences(1, PARAMS))

        async def read() -> None:
            async for deltas in stream:
                seen.extend(deltas)

        with pytest.raises(RuntimeError, match="a kernel failed"):
            await read()
        assert len(seen) >= 2
        engine.step = step  # type: ignore[method-assign]
        assert (await all_of(loop, sequences(1, PARAMS)))[-1].ending is not None

    asyncio.run(scenario())


def test_out_of_memory_in_mid_stream_is_not_seen_in_the_text(text_pair: Pair) -> None:
    async def scenario() -> list[Delta]:
        engine = Engine.load(*text_pair, EngineOptions(num_slots=4, num_speculative_tokens=3, draft_length="fixed"))
        steps = count(1)

        def fail_once() -> None:
            if next(steps) == 3:  # all have written
                raise MemoryError("planted")

        around_step(engine, after=fail_once)
        loop = EngineLoop(engine)
        deltas = await all_of(loop, asked)
        assert loop.stats().num_out_of_memory == 1
        return deltas

    asked = sequences(4, PARAMS)
    deltas = asyncio.run(scenario())
    for index, expected in enumerate(alone(text_pair, asked)):
        own = [delta for delta in deltas if delta.index == index]
        assert [token for delta in own for token in delta.token_ids] == expected
        assert own[-1].ending is not None
        assert sum(bool(delta.token_ids) for delta in own) == asked[index].num_rounds
        assert sum(delta.num_accepted for delta in own) == asked[index].num_accepted_tokens
