"""DraftLink: a generator's way to one draft actor, which may be slow, die, come back or be replaced.

Nobody waits for a draft actor that is out of reach: who asks for it is told so at once, and drafts nothing. After a
failure, or an answer that came late, the link waits (longer after each in a row) before it tries again; after too many
failures it does not try any more. An actor that died, or stays silent, is reported to the roster, which names another.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from actors.settings import DraftSettings
from pipeline.logs import Event

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 30.0  # between two tries
_TRUSTED_S = 600.0  # after so long without a failure earlier ones are not held against an actor any more
_SILENT_S = 60.0  # an actor that has answered before and then does not for so long is hopeless
_log = logging.getLogger(__name__)


@dataclass
class LinkNumbers:
    """What has crossed a link, and what went wrong with it."""

    num_losses: int = 0  # the actor died or failed, or was given up
    num_timeouts: int = 0  # drafts that came too late, or never
    num_requests: int = 0
    num_rows: int = 0  # rows in those requests
    num_bytes_sent: int = 0
    num_new_row_bytes: int = 0  # of those: rows that were sent whole
    num_bytes_received: int = 0
    num_law_bytes: int = 0  # of those: laws, which come under rejection
    wait_seconds: float = 0.0  # that rounds waited for drafts

    def __add__(self, other: LinkNumbers) -> LinkNumbers:
        """Both together."""
        return LinkNumbers(**{name: value + getattr(other, name) for name, value in vars(self).items()})


class DraftLink:
    """One of the draft actors of a generator. Belongs to one thread."""

    def __init__(
        self, find: Callable[[str | None], Any], settings: DraftSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`find` asks for the actor (a reference to its handle, or to None), naming the one that was lost."""
        self._find, self._settings, self._clock = find, settings, clock
        self._actor: Any = None
        self._finding: Any = None
        self._lost: str | None = None  # the id of the actor that is not to be named again
        self._retry_at = self._failed_at = float("-inf")
        self._num_in_a_row = self._num_failures = 0
        self._overdue: list[Any] = []  # references to answers that are
        self._late_since = float("-inf")  # nothing was heard while they are
        self._has_answered = False
        self.is_gone = False  # for ever
        self.generation = 0  # counts the times when what the actor knows of us may have been lost
        self.numbers = LinkNumbers()

    @property
    def is_up(self) -> bool:
        """Whether a request would go out now and be answered in time, as far as anybody knows."""
        return not self.is_late and self._actor is not None and self._clock() >= self._retry_at

    @property
    def is_late(self) -> bool:
        """Whether an answer is overdue."""
        self._look_for_overdue()
        return bool(self._overdue)

    def find(self) -> None:
        """Ask for the actor, if that has not been done. Never waits."""
        if self._actor is None and self._finding is None:
            self._finding = self._find(self._lost)

    def connect(self, vocab_size: int, deadline: float) -> bool:
        """Wait for the actor and its model until the clock shows `deadline`; whether it is there.

        One that dies meanwhile is replaced. Raises ValueError if it is there and cannot draft for a target with so
        many token ids.
        """
        while not self.is_gone and not self._has_answered:
            time.sleep(max(0.0, min(self._retry_at, deadline) - self._clock()))
            try:
                self._meet(vocab_size, deadline)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, ValueError):
                    raise error.cause from error
                self.failed(self.generation, error)
            except ray.exceptions.GetTimeoutError:
                waited_s = self._settings.start_timeout_s
                _log.warning(Event("draft actor not there", waited_s=waited_s, needs=str(self._settings.demand)))
                break
            except ray.exceptions.RayError as error:
                self._finding = None
                self.failed(self.generation, error)
        return self._has_answered

    def actor(self) -> Any:
        """The actor's handle, or None if it is out of reach now, or owes an answer. Never waits."""
        if self.is_late or self.is_gone or self._clock() < self._retry_at:
            return None
        if self._actor is None:
            self.find()
            if ray.wait([self._finding], timeout=0)[0]:
                try:
                    self._take(ray.get(self._finding))
                except ray.exceptions.RayError as error:  # the roster is gone, or its node
                    self._finding = None
                    self.failed(self.generation, error)
        return self._actor

    def late(self, reference: Any, generation: int) -> None:
        """An answer did not come in time. The link waits for it from here on: who asked for it may be gone by then."""
        if generation != self.generation or reference in self._overdue:
            return
        if not self._overdue:
            self._late_since = self._clock()
            _log.warning(Event("draft late", timeout_s=self._settings.timeout_s))
        self._overdue.append(reference)

    def answered(self) -> None:
        """It answered in time."""
        self._has_answered = True
        self._num_in_a_row = 0

    def failed(self, generation: int, error: Exception) -> None:
        """What was asked in this generation came to nothing. Several may say so of one failure."""
        if generation != self.generation:
            return
        if isinstance(error, ray.exceptions.RayActorError) and not isinstance(
            error, ray.exceptions.ActorUnavailableError
        ):
            self._forget_actor()
        _log.warning(Event("draft actor lost", error_type=type(error).__name__, failures=self._num_failures + 1))
        self._fail()

    def _meet(self, vocab_size: int, deadline: float) -> None:
        if self._actor is None:
            self.find()
            self._take(ray.get(self._finding, timeout=max(0.0, deadline - self._clock())))
        if self._actor is not None:
            ray.get(self._actor.ready.remote(vocab_size), timeout=max(0.0, deadline - self._clock()))
            self._has_answered = True

    def _look_for_overdue(self) -> None:
        """Take note of answers that came late. An actor that says nothing for very long is given up.

        One that was late is left alone for a while: a slow one must not make every round wait.
        """
        if not self._overdue:
            return
        there, missing = ray.wait(self._overdue, num_returns=len(self._overdue), timeout=0)
        now = self._clock()
        if there:
            try:
                ray.get(there)
            except ray.exceptions.RayError as error:
                self.failed(self.generation, error)
                return
            self._overdue, self._late_since, self._has_answered = missing, now, True
            if not missing:
                self._wait_a_while()
        elif now - self._late_since > (_SILENT_S if self._has_answered else self._settings.start_timeout_s):
            _log.warning(Event("draft actor silent", seconds=round(now - self._late_since, 1)))
            self._forget_actor()
            self._fail()

    def _fail(self) -> None:
        now = self._clock()
        self._num_failures = 1 if now - self._failed_at > _TRUSTED_S else self._num_failures + 1
        self._failed_at, self._overdue, self._has_answered = now, [], False
        self._wait_a_while()
        self.generation += 1
        self.numbers.num_losses += 1
        if self._num_failures > self._settings.most_reconnects:
            self.is_gone, self._actor = True, None
            _log.error(Event("draft actor given up", failures=self._num_failures))

    def _wait_a_while(self) -> None:
        self._retry_at = self._clock() + min(_FIRST_WAIT_S * 2.0**self._num_in_a_row, _LONGEST_WAIT_S)
        self._num_in_a_row += 1

    def _forget_actor(self) -> None:
        if self._actor is not None:
            self._lost, self._actor = self._actor._actor_id.hex(), None

    def _take(self, actor: Any) -> None:
        self._actor, self._finding = actor, None
        if actor is None:  # the roster names none any more
            self.is_gone = True
            _log.error(Event("draft actor given up", failures=self._num_failures))
