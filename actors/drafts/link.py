"""DraftLink: a generator's connection to one draft actor, which may be slow, die, come back or be replaced.

A drafter never waits for a draft actor that is out of reach: `actor` returns None at once, and nothing is drafted.
After a failure or a late reply the link waits before it tries again, longer after each failure in a row; after too many
failures it gives up. An actor that died or stays silent is reported to the roster, which names another one.
"""

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import ray

from actors.placement import DraftSettings
from pipeline.counts import Sums
from pipeline.logs import Event
from pipeline.ray_internals import actor_id_of

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 30.0  # between two attempts to reach an actor
_FORGIVEN_AFTER_S = 600.0  # without a failure, after which earlier failures no longer count
_SILENT_S = 60.0  # an actor that has replied before and is then silent for this long is given up
_log = logging.getLogger(__name__)


class Calls:
    """Calls of actors under way, each known by its reference. A test passes calls of its own."""

    def arrived(self, references: Seq[Any], timeout_s: float) -> list[Any]:
        """Return the references whose results are there; wait until all are, but no longer than `timeout_s`."""
        return list(ray.wait(list(references), num_returns=len(references), timeout=timeout_s)[0])

    def result(self, reference: Any, timeout_s: float | None = None) -> Any:
        """Return the result of a call. Raises what the call raised, or GetTimeoutError after `timeout_s`."""
        return ray.get(reference, timeout=timeout_s)


@dataclass
class LinkStats(Sums):
    """Counts of what crossed a link, and of its failures."""

    num_losses: int = 0  # times that the actor died, failed or was given up
    num_timeouts: int = 0  # drafts that came too late or never
    num_requests: int = 0
    num_rows: int = 0  # rows in those requests
    num_bytes_sent: int = 0  # of the arrays in requests
    num_new_row_bytes: int = 0  # of those: the tokens of rows that were sent whole
    num_bytes_received: int = 0  # of the arrays in replies
    num_distribution_bytes: int = 0  # of those: distributions, unless coupled
    wait_seconds: float = 0.0  # that rounds waited for drafts
    draft_seconds: float = 0.0  # that the actor took for them


class DraftLink:
    """A connection that belongs to one thread."""

    def __init__(
        self,
        find: Callable[[str | None], Any],
        settings: DraftSettings,
        *,
        calls: Calls | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`find` takes the id of the lost actor and returns a reference to a new actor's handle."""
        self._find, self._settings, self._clock, self._sleep = find, settings, clock, sleep
        self.calls = calls or Calls()
        self._actor: Any = None
        self._finding: Any = None
        self._lost: str | None = None  # the id of the actor that is not to be named again
        self._retry_at = self._failed_at = float("-inf")
        self._num_in_a_row = self._num_failures = 0
        self._overdue: list[Any] = []  # references of late replies
        self._late_since = float("-inf")  # when the newest reply came, while others are late
        self._has_answered = False
        self.is_gone = False  # and will not come back
        self.generation = 0  # grows each time the actor may have lost the rows that it knew
        self.stats = LinkStats()

    @property
    def is_up(self) -> bool:
        """Whether a request would be sent now and, by all signs, answered in time."""
        return not self.is_late and self._actor is not None and self._clock() >= self._retry_at

    @property
    def is_late(self) -> bool:
        """Whether a reply is late."""
        self._look_for_overdue()
        return bool(self._overdue)

    def find(self) -> None:
        """Ask the roster for the actor if that has not been done. Returns at once."""
        if self._actor is None and self._finding is None:
            self._finding = self._find(self._lost)

    def connect(self, vocab_size: int, deadline: float) -> bool:
        """Wait for the actor and its model until the clock shows `deadline`; return whether they are ready.

        An actor that dies meanwhile is replaced. Raises ValueError if its model cannot draft for a target with
        `vocab_size` token ids.
        """
        while not self.is_gone and not self._has_answered:
            self._sleep(max(0.0, min(self._retry_at, deadline) - self._clock()))
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
        """Return the actor's handle at once, or None if it is out of reach now or has a late reply."""
        if self.is_late or self.is_gone or self._clock() < self._retry_at:
            return None
        if self._actor is None:
            self.find()
            if self.calls.arrived([self._finding], 0.0):
                try:
                    self._actor, self._finding = self.calls.result(self._finding), None
                except ray.exceptions.RayError as error:  # the roster or its node is gone
                    self._finding = None
                    self.failed(self.generation, error)
        return self._actor

    def late(self, reference: Any, generation: int) -> None:
        """Record that a reply is late. From now on the link looks for it, since the lane that asked may be gone."""
        if generation != self.generation or reference in self._overdue:
            return
        if not self._overdue:
            self._late_since = self._clock()
            _log.warning(Event("draft late", timeout_s=self._settings.timeout_s))
        self._overdue.append(reference)

    def answered(self) -> None:
        """Record that the actor replied in time."""
        self._has_answered = True
        self._num_in_a_row = 0

    def failed(self, generation: int, error: Exception) -> None:
        """Record that a request of this generation failed. Several lanes may report the same failure."""
        if generation != self.generation:
            return
        is_alive = isinstance(error, ray.exceptions.ActorUnavailableError)
        if isinstance(error, ray.exceptions.RayActorError) and not is_alive:
            self._forget_actor()
        _log.warning(Event("draft actor lost", error_type=type(error).__name__, failures=self._num_failures + 1))
        self._fail(is_alive)

    def _meet(self, vocab_size: int, deadline: float) -> None:
        if self._actor is None:
            self.find()
            self._actor = self.calls.result(self._finding, max(0.0, deadline - self._clock()))
            self._finding = None
        self.calls.result(self._actor.ready.remote(vocab_size), max(0.0, deadline - self._clock()))
        self._has_answered = True

    def _look_for_overdue(self) -> None:
        """Take note of late replies that have come, and give up an actor that was silent for too long.

        After a late reply the actor gets a pause: a slow actor must not make every round wait.
        """
        if not self._overdue:
            return
        arrived, now = self.calls.arrived(self._overdue, 0.0), self._clock()
        if arrived:
            try:
                for reference in arrived:
                    self.calls.result(reference)
            except ray.exceptions.RayError as error:
                self.failed(self.generation, error)
                return
            self._overdue = [reference for reference in self._overdue if reference not in arrived]
            self._late_since, self._has_answered = now, True
            if not self._overdue:
                self._pause()
        elif now - self._late_since > (_SILENT_S if self._has_answered else self._settings.start_timeout_s):
            _log.warning(Event("draft actor silent", seconds=round(now - self._late_since, 1)))
            self._forget_actor()
            self._fail()

    def _fail(self, is_alive: bool = False) -> None:
        """Begin anew after a failure. One of the wire to an actor that is alive does not lead to giving it up."""
        now = self._clock()
        if not is_alive:
            self._num_failures = 1 if now - self._failed_at > _FORGIVEN_AFTER_S else self._num_failures + 1
        self._failed_at, self._overdue, self._has_answered = now, [], False
        self._pause()
        self.generation += 1
        self.stats.num_losses += 1
        if self._num_failures > self._settings.most_reconnects:
            self.is_gone, self._actor = True, None
            _log.error(Event("draft actor given up", failures=self._num_failures))

    def _pause(self) -> None:
        self._retry_at = self._clock() + min(_FIRST_WAIT_S * 2.0**self._num_in_a_row, _LONGEST_WAIT_S)
        self._num_in_a_row += 1

    def _forget_actor(self) -> None:
        if self._actor is not None:
            self._lost, self._actor = actor_id_of(self._actor), None
