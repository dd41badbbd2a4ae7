"""Requests whose replica dies: they resume on another one, or end with an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from actors.engine.deltas import Delta, Ending
from actors.engine.requests import (
    BusyError,
    EngineFacts,
    FailedError,
    Generation,
    OtherModelError,
    RefusedError,
    Scoring,
    Standing,
)
from decoding import SamplingParams
from endpoint.http.errors import ApiError
from endpoint.http.origin import Deadline, DeadlineError
from endpoint.service.backend import EnginesLostError, Replicas, api_errors, as_api_error, ask

pytestmark = pytest.mark.anyio
ENDING = Ending("length", None, None, 0)
NONE = Deadline()
GENERATION = Generation(request_id="r", prompts=((1,),), seeds=(1,), params=SamplingParams(n=2))


def delta(
    index: int, *tokens: int, accepted: int = 0, drafted: int = 0, ends: bool = False, rejected: tuple[int, ...] = ()
) -> Delta:
    return Delta(index, tokens, accepted, max(drafted, accepted), (), ENDING if ends else None, rejected)


class Handle:
    """A deployment handle over replicas that follow a script, death included."""

    def __init__(self, *runs: list[Any]) -> None:
        self._runs, self.num_cancelled = list(runs), 0
        self.num_tries = 0
        self.generate = self

    def options(self, stream: bool) -> Handle:
        assert stream
        return self

    def remote(self, generation: Generation | Scoring) -> Handle:
        self.num_tries += 1
        return self

    def cancel(self) -> None:
        self.num_cancelled += 1

    async def __aiter__(self) -> AsyncIterator[Any]:
        for said in self._runs.pop(0):
            if isinstance(said, ActorDiedError | RayTaskError | BackPressureError):
                raise said
            yield said


async def read(
    handle: Handle, *, is_repeatable: bool = True, fingerprint: str = "", generation: Generation = GENERATION
) -> list[Delta]:
    replicas = Replicas(handle, is_repeatable=is_repeatable, fingerprint=fingerprint)
    return [delta async for deltas in replicas.generate(generation) for delta in deltas]


async def read_by_client(backend: Any, deadline: Deadline = NONE) -> None:
    async for _ in ask(backend, GENERATION, deadline):
        pass


def tokens_of(deltas: list[Delta], index: int) -> list[int]:
    return [token for delta in deltas if delta.index == index for token in delta.token_ids]


async def test_generation_resumes_where_the_dead_replica_stopped():
    handle = Handle(
        [[delta(0, 1, 2, 3, accepted=2), delta(1, 8)], [delta(0, 4)], ActorDiedError()],
        [Standing.WAITS, ActorDiedError()],
        [
            [delta(0, 1, 2)],
            [delta(0, 3, 4, 5, accepted=2), delta(1, 8, 9, accepted=1)],
            [delta(0, 6, ends=True), delta(1, ends=True)],
        ],
    )
    deltas = await read(handle)
    assert (tokens_of(deltas, 0), tokens_of(deltas, 1)) == ([1, 2, 3, 4, 5, 6], [8, 9])
    assert [delta.index for delta in deltas if delta.ending is not None] == [0, 1]
    assert [(delta.token_ids, delta.num_accepted) for delta in deltas if delta.index == 0][2] == ((5,), 0)
    assert handle.num_cancelled == 0


async def test_a_token_that_is_written_again_is_counted_once_in_the_round_that_delivered_it():
    handle = Handle(
        [[delta(0, 1, 2, 3, accepted=2, drafted=3, rejected=(7,)), delta(1, 8, drafted=2)], ActorDiedError()],
        [
            [delta(0, 1, 2, accepted=1, drafted=1, rejected=(6,)), delta(1, 8, 9, accepted=1, drafted=4)],
            [delta(0, 3, 4, 5, accepted=2, drafted=4), delta(1, 7, drafted=4)],
            [delta(0, 6, drafted=2, ends=True), delta(1, ends=True)],
        ],
    )
    deltas = await read(handle)
    expected = [[(3, 2), (3, 1), (2, 0)], [(2, 0), (3, 0), (4, 0)]]
    assert [delta.rejected for delta in deltas if delta.rejected] == [(7,)], "a round that brings nothing shows nothing"
    for index, rounds in enumerate(expected):
        own = [delta for delta in deltas if delta.index == index]
        assert [(delta.num_drafted, delta.num_accepted) for delta in own if delta.token_ids] == rounds
        assert own[-1].ending is not None


async def test_an_ending_behind_tokens_that_were_delivered_brings_no_draft_of_theirs():
    handle = Handle(
        [[delta(0, 1, 2), delta(1, 8, ends=True)], ActorDiedError()],
        [[delta(0, 1, 2, rejected=(7,), ends=True), delta(1, 8, ends=True)]],
    )
    *_, last = await read(handle)
    assert last.ending is not None
    assert (last.token_ids, last.rejected) == ((), ())


async def test_a_sample_that_had_ended_when_its_replica_died_ends_once():
    handle = Handle(
        [[delta(0, 1, ends=True), delta(1, 8)], ActorDiedError()],
        [[delta(1, 8, 9, ends=True)], [delta(0, 1, ends=True)]],
    )
    deltas = await read(handle)
    assert (tokens_of(deltas, 0), tokens_of(deltas, 1)) == ([1], [8, 9])
    assert [delta.index for delta in deltas if delta.ending is not None] == [0, 1]


@pytest.mark.parametrize(
    ("delivered", "again"),
    [
        ([delta(0, 1, 2)], [[delta(0, 1, 3)]]),
        ([delta(0, 1, 2, 3)], [[delta(0, 1, 2, ends=True)]]),
        ([delta(0, 1, ends=True)], [[delta(0, 1)], [delta(0, 2)]]),
    ],
    ids=["other", "shorter", "longer"],
)
async def test_another_text_is_never_appended_to_delivered_tokens(delivered, again):
    with pytest.raises(RuntimeError, match="does not write what it had written"):
        await read(Handle([delivered, ActorDiedError()], again))


@pytest.mark.parametrize(
    ("lost", "is_repeatable"),
    [
        ([Standing.BEGINS], True),
        ([Standing.BEGINS], False),
        ([Standing.WAITS, Standing.BEGINS], True),
        ([Standing.WAITS, Standing.BEGINS], False),
        ([Standing.WAITS, [delta(0, 1)]], True),
    ],
)
async def test_a_request_in_flight_when_two_replicas_die_is_given_up(lost, is_repeatable):
    handle = Handle(*[[*lost, ActorDiedError()] for _ in range(3)])
    with pytest.raises(EnginesLostError):
        await read(handle, is_repeatable=is_repeatable)
    assert handle.num_tries == 2


async def test_a_waiting_request_may_lose_two_replicas_and_gets_a_503_with_the_third():
    waited = [[Standing.WAITS, ActorDiedError()], [ActorDiedError()], [Standing.WAITS, ActorDiedError()]]
    done = [[delta(0, 1, ends=True), delta(1, 1, ends=True)]]
    assert tokens_of(await read(Handle(*waited[:2], done)), 0) == [1]
    with pytest.raises(ActorDiedError):
        await read(Handle(*waited, done))


async def test_a_request_for_scores_is_given_up_after_two_dead_replicas():
    class Dying(Handle):
        def __init__(self) -> None:
            super().__init__()
            self.score = self

        def __await__(self) -> Any:
            raise ActorDiedError

    handle, scoring = Dying(), Scoring(request_id="r", prompts=((1, 2),), num_top=0)
    with pytest.raises(EnginesLostError):
        await Replicas(handle, is_repeatable=True).score(scoring)
    assert handle.num_tries == 2


async def test_a_whole_answer_that_is_not_repeatable_is_begun_anew():
    again = [[delta(0, 5), delta(1, 6)], [delta(0, 7, ends=True), delta(1, 8, ends=True)]]
    whole = replace(GENERATION, is_streamed=False)
    handle = Handle([[delta(0, 1)], [delta(0, 2), delta(1, 3)], ActorDiedError()], again)
    deltas = await read(handle, is_repeatable=False, generation=whole)
    assert (tokens_of(deltas, 0), tokens_of(deltas, 1)) == ([5, 7], [6, 8])
    with pytest.raises(EnginesLostError):
        await read(Handle(*[[[delta(0, 1)], ActorDiedError()]] * 3), is_repeatable=False, generation=whole)


async def test_generation_that_is_not_repeatable_resumes_only_before_its_first_token():
    again = [[delta(0, 1, ends=True), delta(1, 1, ends=True)]]
    assert tokens_of(await read(Handle([ActorDiedError()], again), is_repeatable=False), 0) == [1]
    with pytest.raises(ActorDiedError):
        await read(Handle([[delta(0, 1)], ActorDiedError()], again), is_repeatable=False)


class Mixed(Handle):
    """Replicas of two models, as in a rolling update: each run has a fingerprint."""

    def __init__(self, *runs: tuple[str, list[Any]]) -> None:
        super().__init__()
        self._fingerprints_and_runs = list(runs)
        self.score = self.facts = self  # type: ignore[assignment]

    def remote(self, asked: Any = None) -> Any:
        self.num_tries += 1
        fingerprint, run = self._fingerprints_and_runs.pop(0)
        if asked is None:
            return self._given(EngineFacts(run[0], 300, 3, fingerprint))
        is_other = asked.fingerprint != fingerprint
        if isinstance(asked, Scoring):
            return self._given(OtherModelError("x") if is_other else run)
        self._runs = [[OtherModelError("x")] if is_other else run]
        return self

    async def _given(self, value: Any) -> Any:
        return value


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("endpoint.service.backend._ASK_AGAIN_S", 0)


@pytest.mark.usefixtures("hurried")
async def test_generation_resumes_only_on_a_replica_of_the_same_model():
    own = [[delta(0, 1, 2)], [delta(0, 3, ends=True), delta(1, 8, ends=True)]]
    other = [[delta(0, 9, ends=True), delta(1, 9, ends=True)]]
    handle = Mixed(("new", other), ("old", [[delta(0, 1)], ActorDiedError()]), ("new", other), ("old", own))
    deltas = await read(handle, fingerprint="old")
    assert (tokens_of(deltas, 0), tokens_of(deltas, 1)) == ([1, 2, 3], [8])
    assert handle.num_tries == 4
    assert handle.num_cancelled == 0


@pytest.mark.usefixtures("hurried")
async def test_facts_and_scores_come_from_the_wanted_model():
    facts = await Replicas(Mixed(("new", [8]), ("old", [96])), is_repeatable=True, fingerprint="old").facts()
    assert facts.max_model_len == 96
    scoring = Scoring(request_id="r", prompts=((1, 2),), num_top=0)
    handle = Mixed(("new", ["theirs"]), ("old", ["ours"]))
    assert await Replicas(handle, is_repeatable=True, fingerprint="old").score(scoring) == ["ours"]


@pytest.mark.usefixtures("hurried")
async def test_a_new_ingress_waits_while_all_replicas_are_of_another_model():
    handle = Mixed(("old", [8]), ("old", [8]), ("new", [96]), ("new", [96]))
    replicas = Replicas(handle, is_repeatable=True, fingerprint="new")
    await replicas.wait_for_model()
    assert (await replicas.facts()).max_model_len == 96, "known from then on, without another question"
    assert handle.num_tries == 3


async def test_a_new_ingress_does_not_wait_without_any_replica(monkeypatch):
    monkeypatch.setattr("endpoint.service.backend._NO_REPLICA_S", 0)

    class Absent(Handle):
        async def remote(self) -> None:
            await asyncio.Event().wait()

    handle = Absent()
    handle.facts = handle  # type: ignore[attr-defined]
    await Replicas(handle, is_repeatable=True, fingerprint="new").wait_for_model()


async def test_a_new_ingress_begins_though_the_deployment_of_one_model_has_failed():
    class Failed(Handle):
        async def remote(self) -> None:
            raise DeploymentUnavailableError(DeploymentID(name="Replica-pirate", app_name="dray"))

    handle = Failed()
    handle.facts = handle  # type: ignore[attr-defined]
    await Replicas(handle, is_repeatable=True, fingerprint="new").wait_for_model()


async def test_without_a_replica_of_the_model_the_client_gets_a_503(monkeypatch):
    monkeypatch.setattr("endpoint.service.backend._UPDATE_PATIENCE_S", 0)
    replicas = Replicas(Mixed(*[("new", [96])] * 9), is_repeatable=True, fingerprint="old")
    for question in (read_by_client(replicas), replicas.facts()):
        with pytest.raises(ApiError) as gone, api_errors():
            await question
        assert (gone.value.status, gone.value.code) == (503, "model_unavailable")


async def test_a_client_that_leaves_cancels_the_replicas_work():
    handle = Handle([[delta(0, 1)], [delta(0, 2)]])
    stream = Replicas(handle, is_repeatable=True).generate(GENERATION)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert handle.num_cancelled == 1


@pytest.mark.parametrize("refusal", [BusyError("x"), RefusedError("x"), FailedError("x")])
async def test_a_refusal_is_raised_unchanged(refusal):
    with pytest.raises(type(refusal)):
        await read(Handle([refusal]))


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BusyError("x"), 429, "server_busy"),
        (BackPressureError(num_queued_requests=2, max_queued_requests=1), 429, "server_busy"),
        (RefusedError("sampling.min_tokens is wrong"), 400, "invalid_value"),
        (DeadlineError(2.0), 504, "deadline_exceeded"),
        (ActorDiedError(), 503, "model_unavailable"),
        (EnginesLostError("request r, secret"), 500, "engine_lost"),
    ],
)
def test_each_refusal_has_its_answer(error, status, code):
    answer = as_api_error(error)
    assert isinstance(answer, ApiError)
    assert (answer.status, answer.code) == (status, code)
    assert ("Retry-After" in answer.headers) == (status in (429, 503))
    assert "secret" not in answer.message


async def test_an_unexpected_exception_is_raised_unchanged():
    class Broken:
        async def generate(self, generation: Generation) -> AsyncIterator[list[Delta]]:
            raise ZeroDivisionError
            yield []

    with pytest.raises(ZeroDivisionError):
        await read_by_client(Broken())


async def test_replicas_share_one_deadline(monkeypatch):
    now = 100.0
    monkeypatch.setattr("endpoint.http.origin.time.monotonic", lambda: now)

    class Slow(Handle):
        def remote(self, generation: Generation | Scoring) -> Handle:
            nonlocal now
            now += 6
            return super().remote(generation)

    runs = [[Standing.WAITS, ActorDiedError()], [[delta(0, 1), delta(1, 1)], [delta(0, ends=True)]]]
    handle = Slow(*runs)
    with pytest.raises(ApiError) as late:
        await read_by_client(Replicas(handle, is_repeatable=True), Deadline.after(10.0))
    assert (late.value.status, handle.num_tries) == (504, 2)
    with pytest.raises(ApiError) as late:
        await read_by_client(Replicas(handle, is_repeatable=True), Deadline.after(0.0))
    assert (late.value.status, handle.num_tries) == (504, 2), "no replica was asked"


async def test_requests_beyond_the_limit_are_refused_until_one_has_left():
    handle = Handle([[delta(0, 5)], [delta(0, ends=True)]], [[delta(0, 6, ends=True)]])
    replicas = Replicas(handle, is_repeatable=True, max_requests=1)
    first = replicas.generate(GENERATION)
    assert await anext(first) == [delta(0, 5)]
    with pytest.raises(BusyError):
        await anext(replicas.generate(GENERATION))
    with pytest.raises(BusyError):
        await replicas.score(Scoring(request_id="s", prompts=((5, 6),), num_top=0))
    assert handle.num_tries == 1
    await first.aclose()  # type: ignore[attr-defined]
    assert [new async for new in replicas.generate(GENERATION)] == [[delta(0, 6, ends=True)]]
