"""A replica takes, refuses and drops requests."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from actors.engine.requests import BusyError, Generation, OtherModelError, RefusedError, Scoring, Standing
from actors.workers.replica import Replica, ReplicaSettings
from decoding import SamplingParams
from tests.endpoint.in_process import settings_of

LONG = SamplingParams(max_tokens=80, ignore_eos=True)


@pytest.fixture(scope="module")
def replica(text_pair: tuple[str, str]) -> Replica:
    return Replica(settings_of(text_pair, num_slots=2), ReplicaSettings(max_waiting=2))


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """The event loop that the replica belongs to."""
    with asyncio.Runner() as runner:
        yield runner


def ask(params: SamplingParams = LONG, *prompts: list[int], **values: Any) -> Generation:
    prompts = prompts or ([5, 6],)
    return Generation(
        request_id="r", prompts=tuple(map(tuple, prompts)), seeds=tuple(range(len(prompts))), params=params, **values
    )


def scoring(**values: Any) -> Scoring:
    return Scoring(request_id="s", num_top=0, **{"prompts": ((5, 6),), **values})


async def none_runs(replica: Replica) -> None:
    """Return when those who left have freed their slots."""
    while replica.stats().num_running:
        await asyncio.sleep(0)


async def all_of(replica: Replica, generation: Generation) -> list[Any]:
    """Return all deltas, and at last what says that the request is not done, if it is not."""
    items = [item async for item in replica.generate(generation) if not isinstance(item, Standing)]
    return [each for item in items for each in (item if isinstance(item, list) else [item])]


def test_a_request_beyond_the_bound_is_refused_at_once(replica, runner):
    async def scenario() -> None:
        first = [replica.generate(ask()) for _ in range(4)]
        waiting = [asyncio.ensure_future(anext(stream)) for stream in first]
        await asyncio.sleep(0)
        for refusal in (await anext(replica.generate(ask())), await replica.score(scoring())):
            assert isinstance(refusal, BusyError)
        for stream, future in zip(first, waiting, strict=True):
            await future
            async for _ in stream:
                pass
        assert (await all_of(replica, ask()))[-1].ending is not None

    runner.run(scenario())


def test_an_attempt_is_ended_by_a_recall_of_a_later_one_alone(replica, runner):
    async def scenario(recalling: int) -> Any:
        stream, items = replica.generate(ask(call="c")), []
        async for item in stream:
            items += item if isinstance(item, list) else []
            if item is Standing.BEGINS or items:
                replica.recall("c", recalling)
                replica.recall("another", 2)
        await none_runs(replica)
        return items[-1].ending if items else None

    assert runner.run(scenario(recalling=2)) is None
    assert runner.run(scenario(recalling=1)) is not None


def test_what_outlives_the_time_of_its_request_ends(replica, runner, monkeypatch):
    monkeypatch.setattr("actors.workers.replica._INGRESS_ENDS_IT_WITHIN_S", 0.0)

    async def scenario() -> None:
        assert await all_of(replica, ask(left_s=0.0)) == []
        await none_runs(replica)

    runner.run(scenario())


def test_a_request_of_many_samples_is_taken_while_there_is_room(replica, runner):
    deltas = runner.run(all_of(replica, ask(SamplingParams(n=8, max_tokens=3, ignore_eos=True))))
    assert {delta.index for delta in deltas} == set(range(8))


def test_a_request_whose_client_left_no_longer_counts(replica, runner):
    async def scenario() -> None:
        for _ in range(10):  # more than may wait
            async with aclosing(replica.generate(ask())) as stream:  # type: ignore[type-var]
                assert await anext(stream) is Standing.WAITS
                await anext(stream)
        assert replica._num_unfinished == 0
        await none_runs(replica)

    runner.run(scenario())


@pytest.mark.parametrize(
    ("generation", "problem"),
    [(ask(LONG, []), "no tokens"), (ask(LONG, [5] * 96), "96 tokens"), (ask(LONG, [5], [9999]), "token id 9999")],
)
def test_a_request_that_can_never_run_is_refused_before_it_begins(replica, runner, generation, problem):
    (refusal,) = runner.run(all_of(replica, generation))
    assert isinstance(refusal, RefusedError)
    assert problem in str(refusal)
    assert replica._num_unfinished == 0


def test_a_replica_is_healthy_if_it_writes_a_token_now_or_has_lately(replica, runner, monkeypatch):
    async def scenario() -> None:
        replica._last_token_at = float("-inf")
        await replica.check_health()
        assert replica._last_token_at > 0

        def broken() -> Any:
            raise RuntimeError("the engine is dead")

        with monkeypatch.context() as patch:
            patch.setattr(replica._loop.engine, "step", broken)
            await replica.check_health()  # a token came lately
        replica._last_token_at = float("-inf")
        await replica.score(scoring())
        with monkeypatch.context() as patch:
            patch.setattr(replica._loop.engine, "step", broken)
            await replica.check_health()  # or was scored
            replica._last_token_at = float("-inf")
            with pytest.raises(RuntimeError, match="the engine failed: RuntimeError"):
                await replica.check_health()
        await replica.check_health()

    runner.run(scenario())


@pytest.mark.parametrize("prompt", [(5, 9999), (5,) * 500, ()])
def test_a_prompt_that_cannot_be_scored_is_refused_and_the_message_says_why(replica, runner, prompt):
    refusal = runner.run(replica.score(scoring(prompts=(prompt,))))
    assert isinstance(refusal, RefusedError)
    assert "token" in str(refusal)


def test_the_state_of_a_request_comes_before_its_first_token(replica, runner):
    async def standing(stream: AsyncIterator[Any]) -> list[Any]:
        """What comes before tokens."""
        items = []
        async for item in stream:
            if isinstance(item, list):
                return items
            items.append(item)
        raise AssertionError("there are no tokens")

    async def scenario() -> None:
        await none_runs(replica)
        streams = [replica.generate(ask()) for _ in range(3)]
        first, second, third = await asyncio.gather(*map(standing, streams))
        assert first == second == third == [Standing.WAITS, Standing.BEGINS]
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]

    runner.run(scenario())


def test_a_request_is_reported_to_begin_before_the_step_that_reads_it(replica, runner):
    """Check the order: that step may be the last of the process."""

    async def scenario() -> None:
        await none_runs(replica)
        engine, step, may_step = replica._loop.engine, replica._loop.engine.step, threading.Event()

        def held() -> Any:
            assert may_step.wait(60)
            return step()

        engine.step = held  # type: ignore[method-assign]
        try:
            async with aclosing(replica.generate(ask())) as stream:  # type: ignore[type-var]
                assert await anext(stream) is Standing.WAITS
                assert await anext(stream) is Standing.BEGINS
                may_step.set()
                assert isinstance(await anext(stream), list)
        finally:
            may_step.set()
            engine.step = step  # type: ignore[method-assign]

    runner.run(scenario())


def test_a_request_for_another_models_text_is_refused_at_once(replica, runner, monkeypatch):
    monkeypatch.setattr(replica, "_settings", replace(replica._settings, fingerprint="fp_new"))
    old, new = replace(ask(), fingerprint="fp_old"), replace(ask(), fingerprint="fp_new")

    async def scenario() -> None:
        assert (await replica.facts()).fingerprint == "fp_new"
        (refusal,) = [item async for item in replica.generate(old)]
        assert isinstance(refusal, OtherModelError)
        assert isinstance(await replica.score(scoring(fingerprint="fp_old")), OtherModelError)
        assert isinstance(await replica.score(scoring(fingerprint="fp_new")), list)
        for generation in (new, ask()):
            async with aclosing(replica.generate(generation)) as stream:  # type: ignore[type-var]
                assert await anext(stream) is Standing.WAITS

    runner.run(scenario())
