"""StagePipeline: steps through all stages of a target, several in flight.

Every stage does the steps in the order of their sending; only the last one's answer comes here. A step is settled when
that answer is here, and so are all before it.

When a stage is lost, the group is brought up again, with empty slots: SlotsLostError says so to every session that had
slots, and the engine has its rows read again (docs/adr/0020).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, NoReturn, TypeVar

import ray
import torch

from actors.stages.actor import StageFacts
from actors.stages.answers import answer_of, error_of
from actors.stages.group import StageGroup, StageLostError
from actors.stages.work import Work
from decoding.network.target import SlotsLostError
from pipeline.logs import Event

_MAX_FLYING = 32  # steps: bounds what the stages have to do before they answer
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class StagesGoneError(RuntimeError):
    """Stages are lost again and again, or cannot be replaced."""


@dataclass(eq=False)
class Step(Generic[_T]):
    """Work that all stages were sent, and the last one's answer."""

    pipeline: StagePipeline
    session: int | None  # whose slots it uses
    timeout_s: float | None  # `stages.timeout_s` unless given
    references: list[list[Any]] = field(default_factory=list)  # to what each stage's ranks answer
    answer: _T = field(init=False)  # when it is settled
    receive: Callable[[Any], None] | None = None  # takes the streams, once, before the answer is returned
    streams: Any = None  # that were read on the way, when it is settled: as `packed` left them
    is_settled: bool = False
    error: Exception | None = None  # its own, or that of an earlier step that failed

    @property
    def is_ready(self) -> bool:
        """Whether `result` waits for no other process."""
        return self.is_settled or bool(ray.wait(self.references[-1][:1], timeout=0, fetch_local=False)[0])

    def result(self) -> _T:
        """Return the answer. Raises what the step raised, SlotsLostError, or StagesGoneError if stages stay lost."""
        self.pipeline.settle(self)
        if self.receive is not None:
            receive, streams, self.receive, self.streams = self.receive, self.streams, None, None
            receive(streams)
        return self.answer


class StagePipeline:
    """The way through the stages of a group. One thread drives it."""

    def __init__(self, group: StageGroup) -> None:
        self.group = group
        self._flying: deque[Step[Any]] = deque()
        self._sessions: set[int] = set()  # those that have slots
        self._is_whole = True  # no stage is known to be lost

    def allocate(self, session: int, num_slots: int, num_positions: int, num_draft_tokens: int) -> None:
        """Reserve fresh slots for a session."""
        self.repeat(lambda: self.ask_all("call", "allocate", num_slots, num_positions, num_draft_tokens, session))
        self._sessions.add(session)

    def release(self, session: int) -> None:
        """Give a session's slots back, if it has any."""
        if self.has_slots(session):
            self._sessions.discard(session)
            self.repeat(lambda: self.ask_all("call", "release", session))

    def has_slots(self, session: int) -> bool:
        """Tell whether a session has slots: it has allocated some, and no stage was lost since."""
        return session in self._sessions

    def is_finite(self, session: int, slot: int, length: int) -> bool:
        """Tell whether the first positions of a slot hold numbers only. Raises SlotsLostError."""
        self._check(session)
        return all(self.ask_all("is_finite", session, slot, length))

    def ask_all(self, method: str, *args: Any) -> list[Any]:
        """Return what every actor answers when all that was sent before is settled. Raises SlotsLostError."""
        self.drain()
        self._mend()
        try:
            return self.group.ask_all(method, *args)
        except StageLostError as lost:
            self._bring_up(lost)

    def facts(self) -> list[StageFacts]:
        """Report what is true of each stage now. Raises SlotsLostError."""
        every, num_ranks = self.ask_all("facts"), self.group.settings.tensor_parallel
        return [StageFacts.of_ranks(every[first : first + num_ranks]) for first in range(0, len(every), num_ranks)]

    def tell_all(self, method: str, *args: Any) -> None:
        """Call this on every actor, now and later (`StageGroup.tell_all`). A stage that is lost over it is replaced."""
        try:
            self.group.tell_all(method, *args)
        except StageLostError as lost:
            with suppress(SlotsLostError):  # the new stage has been told; sessions find at their next use what is lost
                self._bring_up(lost)

    def send(
        self,
        work: Work,
        token_ids: Iterable[Iterable[int]],
        finish: Callable[[torch.Tensor], _T] | None = None,
        timeout_s: float | None = None,
        receive: Callable[[Any], None] | None = None,
    ) -> Step[_T]:
        """Send this work on these tokens, one list a row, to all stages; they do it after all that was sent before.

        Raises SlotsLostError where the work's session has lost its slots.
        """
        self._mend()
        if work.session is not None:
            self._check(work.session)
        while len(self._flying) >= _MAX_FLYING:
            self._settle_oldest()
        fed: Any = list(chain.from_iterable(token_ids))
        step, last = Step[_T](self, work.session, timeout_s, receive=receive), len(self.group.ranks) - 1
        for stage in range(last + 1):
            to_first = (finish,) if stage == last else ()
            step.references.append(self.group.run(stage, "do", work, fed, to_first=to_first))
            fed = step.references[-1][0]
        self._flying.append(step)
        return step

    def settle(self, step: Step[Any]) -> None:
        """Wait for the answer of a step (`Step.result`)."""
        while not step.is_settled:
            if step.error is not None:
                raise step.error
            if step not in self._flying:  # dropped with all others when a stage was lost
                assert step.session is not None, "a step without slots is settled before anything else is asked"
                self._check(step.session)
            self._settle_oldest()

    def drain(self) -> None:
        """Settle all that is in flight."""
        while self._flying:
            self._settle_oldest()

    def repeat(self, do: Callable[[], _T]) -> _T:
        """Return what `do` returns, which must need no slots but its own; do it again where a stage is lost over it."""
        for _ in range(max(1, self.group.settings.most_restarts)):
            try:
                return do()
            except SlotsLostError as error:
                lost = error
        raise StagesGoneError(f"stages of the target were lost again and again; the last time: {lost}") from lost

    def close(self) -> None:
        self._flying.clear()
        self.group.close()

    def _settle_oldest(self) -> None:
        step = self._flying[0]
        try:
            step.answer, step.streams = answer_of(self.group, step.references, step.timeout_s)
        except StageLostError as lost:
            self._bring_up(lost)
        except Exception as error:
            for dropped in self._flying:
                dropped.error = error
            self._flying.clear()
            self._is_whole = self.group.settings.tensor_parallel == 1  # ranks that raised were ended (`answer_of`)
            raise
        self._flying.popleft()
        step.is_settled = True

    def _check(self, session: int) -> None:
        if not self.has_slots(session):
            raise SlotsLostError("a stage of the target was lost, and with it what the slots held")

    def _mend(self) -> None:
        """Bring up the stages that an earlier failure left behind."""
        if not self._is_whole:
            self._bring_up(StageLostError("a stage was lost earlier"))

    def _bring_up(self, lost: StageLostError) -> NoReturn:
        """Replace what is lost, and raise SlotsLostError; or StagesGoneError if that cannot be done."""
        self._is_whole = False
        self._look_at_errors()
        sessions, self._sessions = self._sessions, set()
        settings = self.group.settings
        try:
            if not settings.most_restarts:
                raise lost
            self.group.recover(sessions, until=time.monotonic() + settings.start_timeout_s)
        except StageLostError as last:
            raise StagesGoneError(
                f"a lost stage of the target could not be replaced (stages.most_restarts is {settings.most_restarts}, "
                f"stages.start_timeout_s {settings.start_timeout_s:g} s); the last time: {last}"
            ) from lost
        self._is_whole = True
        _log.info(Event("stages recovered", cause=str(lost)))
        raise SlotsLostError(str(lost)) from lost

    def _look_at_errors(self) -> None:
        """Wait for the steps in flight, and look at their errors: Ray would log those that nothing has looked at."""
        sent = [list(chain.from_iterable(step.references)) for step in self._flying]
        self._flying.clear()
        if every := list(chain.from_iterable(sent)):
            ray.wait(every, num_returns=len(every), timeout=self.group.settings.timeout_s, fetch_local=False)
        for references in sent:
            for reference in reversed(references):
                if error_of(reference, timeout_s=0.0) is None:
                    break  # what came before it is no error either
