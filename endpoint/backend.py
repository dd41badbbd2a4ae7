"""Backend: where the application's tokens come from. Either replicas behind Ray Serve, or one in this process."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from actors.deltas import Delta
from actors.generation import BusyError, DeadlineError, EngineFacts, FailedError, Generation, RefusedError, Scoring
from decoding.sequence import TokenLogprobs
from endpoint.errors import ApiError, generation_failed, model_unavailable
from pipeline.logs import Event

_MOST_TRIES = 3  # replicas that a request may lose, and one more
_LOST = (RayActorError, ReplicaUnavailableError)
_log = logging.getLogger(__name__)


class Backend(Protocol):
    """What the application asks. `actors.replica.Replica` is one, for a server without Ray."""

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


class Replicas:
    """Engines behind a Ray Serve deployment.

    A request whose replica dies goes on with another one where the first had come to: both write the same text.
    """

    def __init__(self, handle: Any, *, is_repeatable: bool) -> None:
        """`is_repeatable`: two engines write the same tokens (verification "coupled"), so that a text can go on."""
        self._handle, self._is_repeatable = handle, is_repeatable
        self._streaming = handle.options(stream=True)

    async def facts(self) -> EngineFacts:
        """Of any replica; all are alike."""
        facts: EngineFacts = await self._handle.facts.remote()
        return facts

    async def generate(self, generation: Generation) -> AsyncIterator[list[Delta]]:
        """As `Backend.generate`."""
        told: dict[int, list[int]] = {}
        for tries_left in reversed(range(_MOST_TRIES)):
            resumption = _Resumption(told)
            response = self._streaming.generate_or_refuse.remote(generation)
            is_over = False
            try:
                async for deltas in response:
                    if isinstance(deltas, Exception):
                        is_over = True
                        raise deltas
                    if new := resumption.new(deltas):
                        yield new
                is_over = True
                return
            except RayError as error:
                is_over = True
                self._refuse_to_go_on(error, tries_left, has_begun=bool(told))
                _log.warning(Event("replica lost", request=generation.request_id, tries_left=tries_left))
            except _LOST as error:
                is_over = True
                self._refuse_to_go_on(error, tries_left, has_begun=bool(told))
            finally:
                if not is_over:  # whoever asked has left
                    response.cancel()

    async def score(self, scoring: Scoring) -> list[list[TokenLogprobs]]:
        """As `Backend.score`."""
        for tries_left in reversed(range(_MOST_TRIES)):
            try:
                answer: list[list[TokenLogprobs]] | Exception = await self._handle.score_or_refuse.remote(scoring)
            except (RayError, *_LOST) as error:
                self._refuse_to_go_on(error, tries_left, has_begun=False)
                continue
            if isinstance(answer, Exception):
                raise answer
            return answer
        raise AssertionError("the last try raises")

    async def check_health(self) -> None:
        """As `Backend.check_health`, of one replica."""
        await self._handle.check_health.remote()

    def _refuse_to_go_on(self, error: Exception, tries_left: int, *, has_begun: bool) -> None:
        """Raise what the replica raised; nothing if it was lost and another one may go on."""
        if isinstance(error, RayTaskError):
            cause = error.cause
            raise cause if isinstance(cause, Exception) else error
        if not isinstance(error, _LOST) or not tries_left or (has_begun and not self._is_repeatable):
            raise error


class _Resumption:
    """Skips what has been handed on already, and sees that it is the same."""

    def __init__(self, told: dict[int, list[int]]) -> None:
        """`told` are the tokens of each sequence that are handed on; it grows."""
        self._told = told
        self._num_seen: dict[int, int] = {}

    def new(self, deltas: list[Delta]) -> list[Delta]:
        """Of these deltas, what is not handed on yet."""
        return [new for delta in deltas if (new := self._rest(delta)) is not None]

    def _rest(self, delta: Delta) -> Delta | None:
        told, first = self._told.setdefault(delta.index, []), self._num_seen.get(delta.index, 0)
        self._num_seen[delta.index] = first + len(delta.token_ids)
        num_known = max(0, min(len(told) - first, len(delta.token_ids)))
        if list(delta.token_ids[:num_known]) != told[first : first + num_known]:
            raise RuntimeError("a replica was lost, and another one does not write what it had written")
        told += delta.token_ids[num_known:]
        if num_known == 0:
            return delta
        if num_known == len(delta.token_ids) and delta.ending is None:
            return None
        return replace(
            delta,
            token_ids=delta.token_ids[num_known:],
            num_accepted=max(0, delta.num_accepted - num_known),
            logprobs=delta.logprobs[num_known:],
        )


async def ask(backend: Backend, generation: Generation) -> AsyncIterator[list[Delta]]:
    """The backend's deltas; what goes wrong comes as an ApiError, or as it is where nobody expects it."""
    try:
        async with aclosing(backend.generate(generation)) as stream:  # type: ignore[type-var]
            async for deltas in stream:
                yield deltas
    except Exception as error:
        raise as_api_error(error) from error


async def ask_scores(backend: Backend, scoring: Scoring) -> list[list[TokenLogprobs]]:
    """The backend's scores; errors as with `ask`."""
    try:
        return await backend.score(scoring)
    except Exception as error:
        raise as_api_error(error) from error


async def ask_facts(backend: Backend) -> EngineFacts:
    """The backend's facts; errors as with `ask`."""
    try:
        return await backend.facts()
    except Exception as error:
        raise as_api_error(error) from error


_RETRY: Mapping[str, str] = {"Retry-After": "1"}


def as_api_error(error: Exception) -> Exception:
    """The answer to what a backend raised; the exception itself where it is a fault of ours."""
    match error:
        case BusyError() | BackPressureError():
            return ApiError(
                429,
                "The server is busy: too many requests wait already. Try again in a moment.",
                type="rate_limit_error",
                code="server_busy",
                headers=_RETRY,
            )
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
        case RayActorError() | ReplicaUnavailableError() | DeploymentUnavailableError():
            return model_unavailable()
        case _:
            return error
