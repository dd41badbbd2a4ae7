"""Backend: where the application's tokens come from, either replicas behind Ray Serve or one in this process."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from collections.abc import Sequence as Seq
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from math import inf
from typing import Any, Protocol

from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from actors.engine.deltas import Delta
from actors.engine.requests import (
    BusyError,
    EngineFacts,
    FailedError,
    Generation,
    NotDoneError,
    OtherModelError,
    RefusedError,
    Scoring,
    Standing,
)
from decoding.sequence import TokenLogprobs
from endpoint.http.errors import ApiError, generation_failed, model_replaced, model_unavailable, refusal, server_busy
from endpoint.http.origin import Deadline, DeadlineError
from endpoint.service.resumption import Reached, Resumption
from pipeline.logs import Event

_MAX_LOST = 3  # replicas that a request may lose while it waits, before the client has to try again
_MAX_LOST_IN_FLIGHT = 2  # and while they write it: the request may be what ends them
_RECALL_S = 1.0  # for replicas to say that they have let a request of a lost ingress go
_UPDATE_PATIENCE_S, _ASK_AGAIN_S = 2.0, 0.1  # to find a replica of the wanted model while an update is rolled out
_NO_REPLICA_S = 5.0  # without an answer to a question that takes no time: there is no replica
_LOST = (RayActorError, ReplicaUnavailableError)
_log = logging.getLogger(__name__)


class Backend(Protocol):
    """The questions that the application asks. Where one is not answered, the reason is raised (`as_api_error`)."""

    @property
    def is_repeatable(self) -> bool:
        """Whether a text that was begun is continued by another engine."""

    async def facts(self) -> EngineFacts:
        """Return the engine's limits and fingerprint."""

    def generate(self, generation: Generation) -> AsyncIterator[list[Delta]]:
        """Yield what the samples write, as they write it; the last delta of each has its ending."""

    async def score(self, scoring: Scoring) -> list[list[TokenLogprobs]]:
        """Return the log-probabilities of each prompt's tokens, except its first."""

    async def check_health(self) -> None:
        """Raise what is wrong with the engine, if anything is."""


class EnginesLostError(RuntimeError):
    """A request was in flight each time an engine was lost, and is not given another one."""


class Replicas:
    """Engines behind a Ray Serve deployment.

    A request whose replica dies is continued by another one from where the first had stopped: both write the same text.
    Where they do not, a whole answer is begun anew, and a stream of which something was sent ends with an error.
    It is continued once, since a request that was in flight when two replicas died may be what killed them. A request
    that only waited for a slot cannot be. While an update is rolled out, replicas of another model refuse a request,
    and a replica of its own model is looked for.
    """

    def __init__(self, handle: Any, *, is_repeatable: bool, fingerprint: str = "", max_requests: float = inf) -> None:
        """Ask the replicas behind `handle`, at most `max_requests` at once; more are refused here, which is faster.

        `is_repeatable` says that two engines write the same tokens (Dray's, under verification "coupled"), so that
        another one can continue a text. Only replicas with this `fingerprint` may write; if it is empty, all may.
        """
        self._handle, self.is_repeatable, self._fingerprint = handle, is_repeatable, fingerprint
        self._streaming = handle.options(stream=True)
        self._max_requests, self._num_requests = max_requests, 0
        self._facts: EngineFacts | None = None  # once a replica has answered

    async def facts(self) -> EngineFacts:
        """Return the facts of our model's engines, which are all alike. Raises OtherModelError."""
        tries = _Tries("facts")
        while self._facts is None:
            facts: EngineFacts = await self._handle.facts.remote()
            if self._fingerprint in ("", facts.fingerprint):
                self._facts = facts
            else:
                await tries.again(OtherModelError("the facts are another model's"))
        return self._facts

    async def wait_for_model(self) -> None:
        """Wait while there are only replicas of another model. Return once one of ours is there, or none at all."""
        while True:
            try:
                async with asyncio.timeout(_NO_REPLICA_S):
                    await self.facts()
                return
            except (TimeoutError, DeploymentUnavailableError):
                return
            except (OtherModelError, *_LOST):
                await asyncio.sleep(_ASK_AGAIN_S)

    async def generate(self, generation: Generation) -> AsyncIterator[list[Delta]]:
        """Yield deltas as `Backend.generate` does."""
        generation = replace(generation, fingerprint=self._fingerprint)
        delivered: dict[int, Reached] = {}
        # Of a text that no other replica continues, nothing is passed on before its end unless the client reads along.
        keeps = not self.is_repeatable and not generation.is_streamed
        tries = _Tries(generation.request_id)
        with self._counted():
            if generation.attempt > 1:
                await self._recall(generation)
            while True:
                if keeps:
                    delivered = {}
                # It waits until a replica says otherwise: first for a replica, and then for one of its slots.
                resumption, is_waiting, kept = Resumption(), True, list[list[Delta]]()
                response = self._streaming.generate.remote(generation)
                is_over = False
                try:
                    async for item in response:
                        if isinstance(item, NotDoneError):
                            is_over = True
                            raise item
                        is_waiting = item is Standing.WAITS
                        if isinstance(item, Standing) or not (new := resumption.new(item, delivered)):
                            continue
                        if keeps:
                            kept.append(new)
                        else:
                            yield new
                    is_over = True
                    for new in kept:
                        yield new
                    return
                except (OtherModelError, RayError, *_LOST) as error:
                    is_over = True
                    is_repeatable = self.is_repeatable or keeps or not delivered
                    await tries.again(error, is_waiting=is_waiting, is_repeatable=is_repeatable)
                finally:
                    if not is_over:  # the reader has left
                        response.cancel()

    async def _recall(self, generation: Generation) -> None:
        """End what a lost ingress had asked for: no client reads it, and it keeps slots."""
        with suppress(TimeoutError, DeploymentUnavailableError):
            recalls = self._handle.broadcast("recall", generation.call, generation.attempt)
            await recalls.results_async(timeout_s=_RECALL_S, return_exceptions=True)

    async def score(self, scoring: Scoring) -> list[list[TokenLogprobs]]:
        """Return scores as `Backend.score` does.

        A replica says nothing before it has the scores, so every request for scores counts as in flight.
        """
        scoring = replace(scoring, fingerprint=self._fingerprint)
        tries = _Tries(scoring.request_id)
        with self._counted():
            while True:
                response = self._handle.score.remote(scoring)
                try:
                    answer: list[list[TokenLogprobs]] | NotDoneError = await response
                    if isinstance(answer, NotDoneError):
                        raise answer
                    return answer
                except (OtherModelError, RayError, *_LOST) as error:
                    await tries.again(error)
                except asyncio.CancelledError:
                    response.cancel()
                    raise

    async def check_health(self) -> None:
        """Check one replica as `Backend.check_health` does."""
        await self._handle.check_health.remote()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._num_requests >= self._max_requests:
            raise BusyError("every replica has as many requests as it takes")
        self._num_requests += 1
        try:
            yield
        finally:
            self._num_requests -= 1


class _Tries:
    """The replicas that one request was given to in vain: lost ones, and those of another model during an update."""

    def __init__(self, request_id: str) -> None:
        self._request_id, self._num_lost, self._num_in_flight = request_id, 0, 0
        self._gives_up_at: float | None = None  # set by the first replica of another model

    async def again(self, error: Exception, *, is_waiting: bool = False, is_repeatable: bool = True) -> None:
        """Return when the request may go to another replica after this error; raise if it may not.

        Raises the replica's own exception if the replica was not lost, and EnginesLostError after too many losses.
        """
        if isinstance(error, OtherModelError):
            now = time.monotonic()
            self._gives_up_at = self._gives_up_at or now + _UPDATE_PATIENCE_S
            if now >= self._gives_up_at:
                raise error
            await asyncio.sleep(_ASK_AGAIN_S)
            return
        if isinstance(error, RayTaskError):
            raise error.cause if isinstance(error.cause, Exception) else error
        if not isinstance(error, _LOST) or not is_repeatable:
            raise error
        self._gives_up_at = None
        self._num_lost += 1
        self._num_in_flight += not is_waiting
        _log.warning(Event("replica lost", request_id=self._request_id, waited=is_waiting, lost=self._num_lost))
        if self._num_in_flight >= _MAX_LOST_IN_FLIGHT:
            raise EnginesLostError(f"request {self._request_id} was in flight when {_MAX_LOST_IN_FLIGHT} replicas died")
        if self._num_lost >= _MAX_LOST:
            raise error


async def ask(
    backend: Backend,
    generation: Generation,
    deadline: Deadline,
    known: Seq[Delta] = (),
    form_field: str | None = None,
) -> AsyncIterator[list[Delta]]:
    """Yield the backend's deltas until the deadline; raise its errors as ApiErrors.

    Of a generation of which all is `known` the backend is not asked. `form_field` is the path of the field by which the
    request asks for a form.
    """
    if known:
        yield list(known)
        return
    with api_errors(form_field):
        async with aclosing(backend.generate(generation)) as stream:  # type: ignore[type-var]
            async for deltas in deadline.until(stream):
                yield deltas


@asynccontextmanager
async def in_time(deadline: Deadline) -> AsyncIterator[None]:
    """End what the block awaits at the deadline, and turn what it raises into the ApiError that answers it."""
    with api_errors():
        async with deadline.enforced():
            yield


@contextmanager
def api_errors(form_field: str | None = None) -> Iterator[None]:
    """Turn what the block raises into the ApiError that answers it; an unexpected exception is raised unchanged."""
    try:
        yield
    except Exception as error:
        if (answer := as_api_error(error, form_field)) is error:
            raise
        raise answer from error


def as_api_error(error: Exception, form_field: str | None = None) -> Exception:
    """Return the answer to what a backend raised, or the exception itself where it is a fault of ours."""
    match error:
        case BusyError() | BackPressureError():
            return server_busy("too many requests wait already")
        case RefusedError():
            return refusal(str(error), form_field)
        case FailedError():
            return generation_failed()
        case DeadlineError():
            limit = f"{error.timeout_s:g} seconds, the most that this server gives to one"
            return ApiError(504, f"The request was not done in {limit}.", code="deadline_exceeded")
        case EnginesLostError():
            message = "The engine that wrote this request was lost, and so was the one that continued it."
            return ApiError(500, f"{message} It is not tried again.", code="engine_lost")
        case OtherModelError():
            return model_replaced()
        case RayActorError() | ReplicaUnavailableError() | DeploymentUnavailableError():
            return model_unavailable()
        case _:
            return error
