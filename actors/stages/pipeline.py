"""StagePipeline: steps through all stages of a target, several in flight, done again where a stage was lost.

Every stage does the steps in the order of their sending; only the last one's answer comes here. A step is settled when
that answer is here, and so are all before it.

When a stage was lost, the stages are brought to where the last settled step left them
(`actors/stages/recovery.py`), and the steps that were in flight are done again, one at a time: if a stage is lost once
more, that step did it. It is then done row by row; a row over which a stage is lost twice alone is given up, and the
others go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import Any

import ray

from actors.stages.group import StageGroup, StageLostError
from actors.stages.recovery import MOST_DEATHS_ALONE, StageRecovery
from actors.stages.slot_mirror import SlotMirror
from actors.stages.step import Step, StepSender

_MOST_FLYING = 32  # steps: bounds what the stages keep, and what is done again


class StagePipeline:
    """Sends steps and settles them. One thread drives it."""

    def __init__(self, group: StageGroup) -> None:
        """Over these stages, which belong to it from here on."""
        self.group = group
        self._sender = StepSender(group)
        self._recovery = StageRecovery(group, self._sender)
        self._flying: deque[Step] = deque()

    def allocate(self, session: int, num_slots: int, num_positions: int) -> None:
        """Fresh slots for a session."""
        self.drain()
        self._recovery.mirrors[session] = SlotMirror(num_slots, num_positions)
        self.surely(lambda: self.group.ask_all("allocate", session, num_slots, num_positions))

    def release(self, session: int) -> None:
        """Give a session's slots back."""
        self.drain()
        self._recovery.mirrors.pop(session, None)
        self.surely(lambda: self.group.ask_all("release", session))

    def is_finite(self, session: int, slot: int, length: int) -> bool:
        """Whether so many positions of a slot stand, and hold numbers only."""
        self.drain()
        if len(self._recovery.mirrors[session][slot]) < length:
            return False
        return all(self.surely(lambda: self.group.ask_all("is_finite", session, slot, length)))

    def lengths(self, session: int) -> list[int]:
        """How many tokens each slot will hold when all that is in flight is settled."""
        return self._lengths_after(self._flying, session)

    def loss(self, token_ids: Seq[int]) -> str | None:
        """How stages died over a row that begins like this one; None if none is known to have."""
        return self._recovery.loss(token_ids)

    def send(self, step: Step) -> Step:
        """Have the stages do this after all that was sent before."""
        self._mend()
        while len(self._flying) >= _MOST_FLYING:
            self._settle_oldest()
        waits = any(other.references is None for other in self._flying)  # steps are being done again, one at a time
        waits = waits or self._has_hole(step, after=self._flying)
        self._flying.append(step)
        if not waits:
            self._sender.send(step)
        return step

    def is_ready(self, step: Step) -> bool:
        """Whether `settle` has nothing to wait for."""
        if step.is_settled:
            return True
        if step.references is None or self._flying[0].references is None:
            return False
        ready, _ = ray.wait(step.references[-1][:1], timeout=0, fetch_local=False)
        return bool(ready)

    def settle(self, step: Step) -> Any:
        """The last stage's answer; None if the step was given up (`step.loss`). Raises what the step itself raised.

        Raises StagesGoneError if stages are lost more often in a row than they may be, or cannot be replaced.
        """
        while not step.is_settled:
            if step not in self._flying:
                raise RuntimeError("this step was dropped when another one failed")
            self._settle_oldest()
        return step.answer

    def drain(self) -> None:
        """Settle all that is in flight."""
        while self._flying:
            self._settle_oldest()

    def surely(self, ask: Callable[[], Any]) -> Any:
        """What `ask` gives, which asks all stages something; where one is lost over it, it is asked again.

        Nothing may be in flight.
        """
        while True:
            self._mend()
            try:
                return ask()
            except StageLostError as lost:
                self._recover(lost)

    def close(self) -> None:
        """End the stages."""
        self._flying.clear()
        self.group.close()

    def _settle_oldest(self) -> None:
        """Settle the step that was sent first, or come nearer to it."""
        step = self._flying[0]
        if step.rows is not None:
            self._flying.popleft()
            step.answer, step.is_settled = step.finish.gathered([row.answer for row in step.rows]), True
        elif step.references is None:
            self._settle_alone(step)
        else:
            try:
                self._wait_for(step)
            except StageLostError as lost:
                self._recover(lost)

    def _settle_alone(self, step: Step) -> None:
        """Do the oldest step again with nothing beside it, or its rows, or give its only row up."""
        if self._has_hole(step, after=()):
            if step.can_be_split:
                self._split(step)
            else:
                self._give_up(step, None)
            return
        self._sender.send(step)
        try:
            self._wait_for(step)
        except StageLostError as lost:
            step.num_deaths += 1
            self._recover(lost)
            if step.can_be_split:
                self._split(step)
            elif step.num_deaths >= MOST_DEATHS_ALONE and step.num_rows:
                self._give_up(
                    step,
                    f"a stage of the target was lost over this row, {step.num_deaths} times with nothing beside it "
                    "(out of memory, or a fault in a kernel that this row sets off, or a step that takes longer than "
                    f"stages.timeout_s); the last time: {lost}",
                )

    def _wait_for(self, step: Step) -> None:
        """Settle the oldest step. Raises StageLostError; after an error that is nobody's death nothing is in flight."""
        try:
            step.answer = self._sender.answer(step)
        except StageLostError:
            raise
        except Exception:
            sessions = {each.work.session for each in self._flying}
            self._recovery.forget(session for session in sessions if session is not None)
            self._flying.clear()
            raise
        self._flying.popleft()
        step.is_settled = True
        self._recovery.note(step)

    def _split(self, step: Step) -> None:
        """Put the parts of the oldest step in its place, and it behind them."""
        self._flying.popleft()
        self._flying.extendleft(reversed([*step.split(), step]))

    def _give_up(self, step: Step, why: str | None) -> None:
        """Leave the oldest step, of a single row, undone."""
        self._flying.popleft()
        step.loss, step.is_settled = why, True
        self._recovery.give_up(step, why)

    def _has_hole(self, step: Step, after: Iterable[Step]) -> bool:
        """Whether a row of this step, done after those, follows something whose writing was given up."""
        session = step.work.session
        return session is not None and step.has_hole(self._lengths_after(after, session))

    def _lengths_after(self, steps: Iterable[Step], session: int) -> list[int]:
        lengths = self._recovery.mirrors[session].lengths()
        for step in steps:
            if step.work.session == session and step.rows is None:
                step.lengthen(lengths)
        return lengths

    def _mend(self) -> None:
        """Bring the stages up again that an earlier recovery left behind."""
        if not self._recovery.is_whole:
            self._recover(StageLostError("an earlier recovery was not completed"))

    def _recover(self, lost: StageLostError) -> None:
        """Bring the stages to where the last settled step left them. What is in flight is to be sent again."""
        try:
            self._recovery.recover(lost, self._flying)
        except Exception:
            self._flying.clear()
            raise
