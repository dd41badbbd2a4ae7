"""StagePipeline: steps through all stages of a target, several in flight, done again where a stage was lost.

Every stage does the steps in the order of their sending. What the stages hand on goes from one to the next; only the
last one's answer comes here. A step is settled when that answer is here, and so are all before it; a mirror of every
slot's tokens says what stands in the stages then.

When a stage is lost it is replaced, all stages start with empty slots, the mirrors' tokens are written again, and the
steps that were in flight are done again, one at a time: if a stage is lost once more, that step did it. It is then done
row by row; a row over which a stage is lost twice alone is given up, and the others go on.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, cast

import ray
import tenacity
from ray.exceptions import RayError

from actors.slot_mirror import SlotMirror, change_lengths
from actors.stage_actor import StageFacts
from actors.stage_answers import answer_of
from actors.stage_group import StageGroup, StageLostError
from actors.stage_work import Finish, Nothing, Work
from decoding.prefill import Piece, batches, may_go_with
from pipeline.logs import Event

_MOST_FLYING = 32  # steps: bounds what the stages keep, and what is done again
_MOST_DEATHS_ALONE = 2
_MOST_LOSSES = 256  # rows whose end is remembered: longer than anybody asks
_LONGEST_WAIT_S = 30.0
_log = logging.getLogger(__name__)


class StagesGoneError(RuntimeError):
    """Stages are lost again and again, or cannot be replaced."""


@dataclass(eq=False)
class Step:
    """Work for all stages: on slots of a session, or on one row without any."""

    work: Work
    token_ids: list[list[int]] = field(default_factory=list)  # of each row
    finish: Finish = field(default_factory=Nothing)
    answer: Any = None  # of the last stage, when it is settled
    is_settled: bool = False
    loss: str | None = None  # why it was given up; only a step of a single row ever is
    references: list[list[Any]] | None = None  # to what each stage's ranks answer; None: not sent, or to be sent again
    num_deaths: int = 0  # while it ran alone
    number: int = -1  # under which the stages know it
    rows: list[Step] | None = None  # its rows, where each had to be done alone

    @property
    def num_rows(self) -> int:
        """Rows of its forward."""
        return len(self.token_ids)


class StagePipeline:
    """Sends steps and settles them. One thread drives it."""

    def __init__(self, group: StageGroup) -> None:
        """Over these stages, which belong to it from here on."""
        self.group = group
        self.num_recoveries = 0
        self._mirrors: dict[int, SlotMirror] = {}
        self._losses: deque[tuple[list[int], str]] = deque(maxlen=_MOST_LOSSES)  # tokens, and how stages died over them
        self._flying: deque[Step] = deque()
        self._next_step, self._settled = 0, -1
        self._num_losses = 0  # in a row
        self._is_whole = True  # the stages hold what the mirrors say

    def allocate(self, session: int, num_slots: int, num_positions: int) -> None:
        """Fresh slots for a session."""
        self.drain()
        self._mirrors[session] = SlotMirror(num_slots, num_positions)
        self.surely(lambda: self.group.ask_all("allocate", session, num_slots, num_positions))

    def release(self, session: int) -> None:
        """Give a session's slots back."""
        self.drain()
        self._mirrors.pop(session, None)
        self.surely(lambda: self.group.ask_all("release", session))

    def is_finite(self, session: int, slot: int, length: int) -> bool:
        """Whether so many positions of a slot stand, and hold numbers only."""
        self.drain()
        if len(self._mirrors[session][slot]) < length:
            return False
        return all(self.surely(lambda: self.group.ask_all("is_finite", session, slot, length)))

    def lengths(self, session: int) -> list[int]:
        """How many tokens each slot will hold when all that is in flight is settled."""
        lengths = self._mirrors[session].lengths()
        for step in self._flying:
            if step.work.session == session and step.rows is None:
                change_lengths(lengths, step.work.changes)
                for slot, start, token_ids in zip(step.work.slots, step.work.starts, step.token_ids, strict=True):
                    if start <= lengths[slot]:
                        lengths[slot] = start + len(token_ids)
        return lengths

    def loss(self, token_ids: Seq[int]) -> str | None:
        """How stages died over a row that begins like this one; None if none is known to have."""
        return next((why for lost, why in self._losses if list(token_ids[: len(lost)]) == lost), None)

    def send(self, step: Step) -> Step:
        """Have the stages do this after all that was sent before."""
        self._mend()
        while len(self._flying) >= _MOST_FLYING:
            self._settle_oldest()
        waits = any(other.references is None for other in self._flying)  # steps are being done again, one at a time
        waits = waits or self._has_hole(step)
        self._flying.append(step)
        if not waits:
            self._dispatch(step)
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

    def close(self) -> None:
        """End the stages."""
        self._flying.clear()
        self.group.close()

    def _settle_oldest(self) -> None:
        step = self._flying[0]
        if step.rows is not None:
            self._flying.popleft()
            step.answer, step.is_settled = step.finish.gathered([row.answer for row in step.rows]), True
            return
        is_alone = step.references is None
        if is_alone:
            has_hole = self._has_hole(step)
            if has_hole and (step.num_rows > 1 or step.work.changes):
                self._split(step)
                return
            if has_hole:
                self._give_up(step, None)
                return
            self._dispatch(step)
        try:
            step.answer = self._answer(step)
        except StageLostError as lost:
            step.num_deaths += is_alone
            self._recover(lost)
            if is_alone and (step.num_rows > 1 or (step.work.changes and step.num_rows)):
                self._split(step)
            elif is_alone and step.num_deaths >= _MOST_DEATHS_ALONE and step.num_rows:
                self._give_up(
                    step,
                    f"a stage of the target was lost over this row, {step.num_deaths} times with nothing beside it "
                    "(out of memory, or a fault in a kernel that this row sets off, or a step that takes longer than "
                    f"stages.timeout_s); the last time: {lost}",
                )
            return
        except Exception:
            self._forget_all()
            raise
        self._flying.popleft()
        step.is_settled = True
        self._num_losses = 0
        self._note(step)

    def _note(self, step: Step) -> None:
        work = step.work
        mirror = None if work.session is None else self._mirrors.get(work.session)
        if mirror is None:
            return
        mirror.change(work.changes)
        for slot, start, token_ids in zip(work.slots, work.starts, step.token_ids, strict=True):
            mirror.write(slot, start, token_ids)

    def _has_hole(self, step: Step) -> bool:
        """Whether something will not stand that a row of this step follows: its writing was given up."""
        if step.work.session is None:
            return False
        is_oldest = bool(self._flying) and self._flying[0] is step
        lengths = self._mirrors[step.work.session].lengths() if is_oldest else self.lengths(step.work.session)
        change_lengths(lengths, step.work.changes)
        return any(start > lengths[slot] for slot, start in zip(step.work.slots, step.work.starts, strict=True))

    def _split(self, step: Step) -> None:
        """Put the changes of slots, and each row, in steps of their own in front; the step itself gathers them."""
        parts = [Step(Work(step.work.session, step.work.changes))] if step.work.changes else []
        rows = [self._row(step, row) for row in range(step.num_rows)]
        self._flying.popleft()
        self._flying.extendleft(reversed([*parts, *rows, step]))
        step.rows, step.references = rows, None

    def _row(self, step: Step, row: int) -> Step:
        work = step.work
        alone = replace(
            work,
            changes=(),
            slots=work.slots[row : row + 1],
            starts=work.starts[row : row + 1],
            lengths=work.lengths[row : row + 1],
        )
        return Step(alone, [step.token_ids[row]], step.finish.of_row(row))

    def _give_up(self, step: Step, why: str | None) -> None:
        """Leave a row's step undone. What stood in its slot from where it begins belonged to somebody else."""
        self._flying.popleft()
        step.loss, step.is_settled = why, True
        if step.work.session is None:
            return
        mirror, slot, start = self._mirrors[step.work.session], step.work.slots[0], step.work.starts[0]
        mirror.write(slot, min(start, len(mirror[slot])), [])
        if why is not None:
            self._losses.append(([*mirror[slot], *step.token_ids[0]], why))

    def _dispatch(self, step: Step) -> None:
        number = self._next_step
        self._next_step += 1
        step.references = []
        fed: Any = [token for token_ids in step.token_ids for token in token_ids]
        last = len(self.group.ranks) - 1
        for stage in range(last + 1):
            finish = (step.finish,) if stage == last else ()
            answers = self.group.run(stage, "do", number, self._settled, step.work, fed, to_first=finish)
            step.references.append(answers)
            fed = answers[0]
        step.number = number

    def _answer(self, step: Step) -> Any:
        """Of the last stage."""
        assert step.references is not None, "it was sent"
        answer = answer_of(self.group, step.references)
        self._settled = step.number
        return answer

    def _forget_all(self) -> None:
        """After an error that is nobody's death: what was in flight is dropped, what it wrote is not relied on.

        Ranks that raised one have been ended (`answer_of`).
        """
        self._is_whole = self.group.settings.tensor_parallel == 1
        for session in {step.work.session for step in self._flying} - {None}:
            self._mirrors[cast(int, session)].clear_all()
        self._flying.clear()

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

    def _recover(self, lost: StageLostError) -> None:
        """Bring the stages to where the mirrors are. What is in flight is to be sent again."""
        self._is_whole = False
        self._let_go()
        most = self.group.settings.most_restarts
        if self._num_losses >= most:
            raise self._gone(lost)
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(StageLostError),
            wait=tenacity.wait_exponential(multiplier=0.1, max=_LONGEST_WAIT_S),
            stop=tenacity.stop_any(
                tenacity.stop_after_delay(self.group.settings.start_timeout_s),
                tenacity.stop_after_attempt(most - self._num_losses),
            ),
            before=self._count_loss,
        )
        deaths: dict[tuple[int, int], int] = {}
        until = time.monotonic() + self.group.settings.start_timeout_s
        try:
            attempts(self._rebuild, deaths, until)
        except tenacity.RetryError as error:
            raise self._gone(error.last_attempt.exception()) from lost
        except Exception:  # nobody's death, and yet the stages do not hold what they should: out of memory, say
            self._drop_all()
            raise
        self._is_whole = True
        self.num_recoveries += 1
        _log.info(Event("stages recovered", steps_in_flight=len(self._flying), losses_in_a_row=self._num_losses))

    def _mend(self) -> None:
        """Bring the stages up again that an earlier recovery left behind."""
        if not self._is_whole:
            self._recover(StageLostError("an earlier recovery was not completed"))

    def _let_go(self) -> None:
        """Wait for what is in flight, and look at its errors: those that nobody has seen Ray would log."""
        flying = [list(chain.from_iterable(step.references)) for step in self._flying if step.references]
        every = [reference for references in flying for reference in references]
        ready = (
            set(ray.wait(every, num_returns=len(every), timeout=self.group.settings.timeout_s, fetch_local=False)[0])
            if every
            else set()
        )
        for references in flying:
            for reference in reversed(references):
                if reference in ready:
                    try:
                        ray.get(reference)
                    except RayError:
                        continue
                    if self.group.settings.tensor_parallel == 1:
                        break  # what came before it is no error either
        for step in self._flying:
            step.references = None

    def _gone(self, last: BaseException | None) -> StagesGoneError:
        num_losses, self._num_losses = self._num_losses, 0
        self._drop_all()
        return StagesGoneError(
            f"stages of the target were lost {num_losses} times in a row, and stages.most_restarts is "
            f"{self.group.settings.most_restarts}; the last time: {last}"
        )

    def _drop_all(self) -> None:
        """Nothing is in flight, and nothing stands."""
        self._flying.clear()
        for mirror in self._mirrors.values():
            mirror.clear_all()

    def _count_loss(self, _: tenacity.RetryCallState) -> None:
        self._num_losses += 1

    def _rebuild(self, deaths: dict[tuple[int, int], int], until: float) -> None:
        self.group.heal(until)
        goes_with = fit(self.group.facts())
        for session, mirror in self._mirrors.items():
            self.group.ask_all("allocate", session, mirror.num_slots, mirror.num_positions)
            written = [slot for slot in range(mirror.num_slots) if mirror[slot]]
            for slots in [[slot] for slot in written] if deaths else [written]:
                for batch in batches(slots, [mirror[slot] for slot in slots], None, goes_with):
                    self._write(session, mirror, batch, deaths)

    def _write(self, session: int, mirror: SlotMirror, batch: list[Piece], deaths: dict[tuple[int, int], int]) -> None:
        """Write tokens of a mirror again."""
        work = Work(
            session,
            slots=tuple(piece.slot for piece in batch),
            starts=tuple(piece.start for piece in batch),
            lengths=tuple(len(piece.tokens) for piece in batch),
        )
        step = Step(work, [piece.tokens for piece in batch])
        self._dispatch(step)
        try:
            self._answer(step)
        except StageLostError:
            for piece in batch:
                place = session, piece.slot
                deaths[place] = deaths.get(place, 0) + (len(batch) == 1)
                if deaths[place] >= _MOST_DEATHS_ALONE:
                    mirror.clear(piece.slot)  # whoever stands there has a hole, and is looked at alone
            raise


def fit(facts: Seq[StageFacts]) -> Callable[[list[int], list[Piece]], bool]:
    """Whether a row may stand beside longer ones in a forward of these stages."""
    return partial(
        may_go_with,
        packs_rows=all(stage.packs_rows for stage in facts),
        is_fused=all(stage.runs_kernels for stage in facts),
    )
