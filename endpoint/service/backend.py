"""Backend: where the application's tokens come from. Either replicas behind Ray Serve, or one in this process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from math import inf
from typing import Any, Protocol

from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from actors.engine.deadline import Deadline, DeadlineError
from actors.engine.deltas import Delta
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
from decoding.sequence import TokenLogprobs
from endpoint.http.errors import ApiError, generation_failed, model_replaced, model_unavailable, server_busy
from endpoint.service.resumption import Resumption, Told
from pipeline.logs import Event

_MOST_LOST = 3  # replicas that a request may lose while it waits, before it is the client's turn to try again
_MOST_LOST_IN_FLIGHT = 2  # and while they write it: it may be the request that ends them
_UPDATE_PATIENCE_S, _ASK_AGAIN_S = 2.0, 0.1  # while an update is rolled out, for a replica of the model wanted
_NOBODY_S = 5.0  # without an answer to a question that takes no time: no replica is there
_LOST = (RayActorError, ReplicaUnavailableError)
_log = logging.getLogger(__name__)


class Backend(Protocol):
    """What the application asks. `actors.workers.replica.Replica` is one, for a server without Ray."""

    async def facts(self) -> EngineFacts:
        """As `Replica.facts`."""
        ...

    def generate(self, generation: Generation) -> AsyncIterator[list[Delta]]:
        """As `Replica.generate`."""
        ...

    async def score(self, scoring: Scoring) -> list[list[TokenLogprobs]]:
        """As `Replica.score`."""
        ...

    async def check_health(self) -> None:
        """As `Replica.check_health`."""
        ...


class EnginesLostError(RuntimeError):
    """A request was in flight each time an engine was lost, and is not given another one."""


class Replicas:
    """Engines behind a Ray Serve deployment.

    A request whose replica dies goes on with another one where the first had come to: both write the same text. Once:
    who was in flight when two of them died may be what they died of. Whoever waited for a slot was not. While an
    update is rolled out there are replicas of another model, which refuse: one that does not is looked for.
    """

    def __init__(self, handle: Any, *, is_repeatable: bool, fingerprint: str = "", most_requests: float = inf) -> None:
        """`is_repeatable`: two engines write the same tokens (verification "coupled"), so that a text can go on.

        `fingerprint` is that of the replicas which may write; empty: all of them may. Beyond `most_requests`, which all
        replicas take together at most, who comes is refused here: that is sooner.
        """
        self._handle, self._is_repeatable, self._fingerprint = handle, is_repeatable, fingerprint
        self._streaming = handle.options(stream=True)
        self._most_requests, self._num_requests = most_requests, 0

    async def facts(self) -> EngineFacts:
        """Of any replica of our model; all are alike. Raises OtherModelError."""
        search = _Search()
        while True:
            facts: EngineFacts = await self._handle.facts.remote()
            if self._fingerprint in ("", facts.fingerprint):
                return facts
            await search.go_on(OtherModelError("the facts are another model's"))

    async def until_there(self) -> None:
        """Return when a replica of our model is there, or none of another one either."""
        while True:
            try:
                async with asyncio.timeout(_NOBODY_S):
                    await self.facts()
                return
            except TimeoutError:
                return
            except (OtherModelError, *_LOST):
                await asyncio.sleep(_ASK_AGAIN_S)

    async def generate(self, generation: Generation) -> AsyncIterator[list[Delta]]:
        """As `Backend.generate`."""
        with self._taken():
            async with aclosing(self._generate(generation)) as stream:  # type: ignore[type-var]
                async for deltas in stream:
                    yield deltas

    @contextmanager
    def _taken(self) -> Iterator[None]:
        if self._num_requests >= self._most_requests:
            raise BusyError("every replica has as many requests as it takes")
        self._num_requests += 1
        try:
            yield
        finally:
            self._num_requests -= 1

    async def _generate(self, generation: Generation) -> AsyncIterator[list[Delta]]:
        generation = replace(generation, fingerprint=self._fingerprint)
        told: dict[int, Told] = {}
        losses, search = _Losses(generation.request_id), _Search()
        while True:
            # It waits until a replica says otherwise: for a replica at first, and then for a slot of it.
            resumption, is_waiting = Resumption(told), True
            response = self._streaming.generate_or_refuse.remote(generation)
            is_over = False
            try:
                async for item in response:
                    if isinstance(item, Exception):
                        is_over = True
                        raise item
                    is_waiting = item is Standing.WAITS
                    if not isinstance(item, Standing) and (new := resumption.new(item)):
                        yield new
                is_over = True
                return
            except OtherModelError as error:
                await search.go_on(error)
            except (RayError, *_LOST) as error:
                is_over = True
                losses.add(error, is_waiting=is_waiting, may_go_on=self._is_repeatable or not told)
                search = _Search()
            finally:
                if not is_over:  # whoever asked has left
                    response.cancel()

    async def score(self, scoring: Scoring) -> list[list[TokenLogprobs]]:
        """As `Backend.score`. A replica says nothing before the scores, so whoever asked is held to be in flight."""
        with self._taken():
            return await self._score(scoring)

    async def _score(self, scoring: Scoring) -> list[list[TokenLogprobs]]:
        scoring = replace(scoring, fingerprint=self._fingerprint)
        losses, search = _Losses(scoring.request_id), _Search()
        while True:
            response = self._handle.score_or_refuse.remote(scoring)
            try:
                answer: list[list[TokenLogprobs]] | Exception = await response
            except (RayError, *_LOST) as error:
                losses.add(error, is_waiting=False, may_go_on=True)
                continue
            except asyncio.CancelledError:
                response.cancel()
                raise
            if isinstance(answer, OtherModelError):
                await search.go_on(answer)
                continue
            if isinstance(answer, Exception):
                raise answer
            return answer

    async def check_health(self) -> None:
        """As `Backend.check_health`, of one replica."""
        await self._handle.check_health.remote()


class _Search:
    """For a replica of the model that is wanted, among those of an update."""

    def __init__(self) -> None:
        self._gives_up_at: float | None = None  # known with the first refusal

    async def go_on(self, refusal: OtherModelError) -> None:
        """Return when another one may be asked. Raises the refusal when that has been done for long enough."""
        now = time.monotonic()
        self._gives_up_at = now + _UPDATE_PATIENCE_S if self._gives_up_at is None else self._gives_up_at
        if now >= self._gives_up_at:
            raise refusal
        await asyncio.sleep(_ASK_AGAIN_S)


class _Losses:
    """The replicas that one request was with and that were lost."""

    def __init__(self, request_id: str) -> None:
        self._request_id, self._num_lost, self._num_in_flight = request_id, 0, 0

    def add(self, error: Exception, *, is_waiting: bool, may_go_on: bool) -> None:
        """Another one. Raises what the replica raised, if it was not lost; EnginesLostError if there were enough."""
        if isinstance(error, RayTaskError):
            cause = error.cause
            raise cause if isinstance(cause, Exception) else error
        if not isinstance(error, _LOST) or not may_go_on:
            raise error
        self._num_lost += 1
        self._num_in_flight += not is_waiting
        _log.warning(Event("replica lost", request_id=self._request_id, waited=is_waiting, lost=self._num_lost))
        if self._num_in_flight >= _MOST_LOST_IN_FLIGHT:
            raise EnginesLostError(
                f"request {self._request_id} was in flight when {_MOST_LOST_IN_FLIGHT} replicas died"
            )
        if self._num_lost >= _MOST_LOST:
            raise error


async def ask(backend: Backend, generation: Generation) -> AsyncIterator[list[Delta]]:
    """The backend's deltas; what goes wrong comes as an ApiError, or as it is where nobody expects it."""
    try:
        async with aclosing(backend.generate(generation)) as stream:  # type: ignore[type-var]
            async for deltas in generation.deadline.until(stream):
                yield deltas
    except Exception as error:
        raise as_api_error(error) from error


async def ask_scores(backend: Backend, scoring: Scoring) -> list[list[TokenLogprobs]]:
    """The backend's scores; errors as with `ask`."""
    try:
        async with scoring.deadline.enforced():
            return await backend.score(scoring)
    except Exception as error:
        raise as_api_error(error) from error


async def ask_facts(backend: Backend, deadline: Deadline) -> EngineFacts:
    """The backend's facts; errors as with `ask`."""
    try:
        async with deadline.enforced():
            return await backend.facts()
    except Exception as error:
        raise as_api_error(error) from error


def as_api_error(error: Exception) -> Exception:
    """The answer to what a backend raised; the exception itself where it is a fault of ours."""
    match error:
        case BusyError() | BackPressureError():
            return server_busy("too many requests wait already")
        case RefusedError():
            return ApiError(400, str(error).replace("sampling.", ""), code="invalid_value")
        case FailedError():
            return generation_failed()
        case DeadlineError():
            return ApiError(
                504,
                f"The request was not done in {error.timeout_s:g} seconds, which is all that this server gives one.",
                type="timeout_error",
                code="deadline_exceeded",
            )
        case EnginesLostError():
            return ApiError(
                500,
                "The engine that wrote this request was lost, and so was the one that went on with it. It is not tried "
                "again.",
                type="server_error",
                code="engine_lost",
            )
        case OtherModelError():
            return model_replaced()
        case RayActorError() | ReplicaUnavailableError() | DeploymentUnavailableError():
            return model_unavailable()
        case _:
            return error
