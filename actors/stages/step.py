"""Step: work that goes through all stages of a target, and how it is sent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from actors.stages.answers import answer_of
from actors.stages.group import StageGroup
from actors.stages.slot_mirror import change_lengths
from actors.stages.work import Finish, Nothing, Work


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

    @property
    def can_be_split(self) -> bool:
        """Whether it is more than one row alone."""
        return self.num_rows > 1 or (self.num_rows == 1 and bool(self.work.changes))

    def loss_of(self, row: int) -> str | None:
        """Why one of its rows was given up; None if it was not, or only because what it follows was."""
        return self.loss if self.rows is None else self.rows[row].loss

    def split(self) -> list[Step]:
        """The changes of slots, and each row, as steps of their own, to be done before this one, which gathers them."""
        changes = [Step(Work(self.work.session, self.work.changes))] if self.work.changes else []
        self.rows, self.references = [self._row(row) for row in range(self.num_rows)], None
        return [*changes, *self.rows]

    def lengthen(self, lengths: list[int]) -> None:
        """What it makes of how many tokens each slot holds, in place; nothing where its row follows what is missing."""
        change_lengths(lengths, self.work.changes)
        for slot, start, token_ids in zip(self.work.slots, self.work.starts, self.token_ids, strict=True):
            if start <= lengths[slot]:
                lengths[slot] = start + len(token_ids)

    def has_hole(self, lengths: list[int]) -> bool:
        """Whether one of its rows follows what is missing, where the slots hold so many tokens."""
        lengths = list(lengths)
        change_lengths(lengths, self.work.changes)
        return any(start > lengths[slot] for slot, start in zip(self.work.slots, self.work.starts, strict=True))

    def _row(self, row: int) -> Step:
        work = self.work
        alone = replace(
            work,
            changes=(),
            slots=work.slots[row : row + 1],
            starts=work.starts[row : row + 1],
            lengths=work.lengths[row : row + 1],
        )
        return Step(alone, [self.token_ids[row]], self.finish.of_row(row))


class StepSender:
    """Sends steps through the stages of a group: what one hands on goes to the next, and the last one answers."""

    def __init__(self, group: StageGroup) -> None:
        """No step has been sent."""
        self.group = group
        self._next_number, self._settled = 0, -1

    def send(self, step: Step) -> None:
        """Have all stages do it, after all that was sent before."""
        step.number, step.references = self._next_number, []
        self._next_number += 1
        fed: Any = [token for token_ids in step.token_ids for token in token_ids]
        last = len(self.group.ranks) - 1
        for stage in range(last + 1):
            finish = (step.finish,) if stage == last else ()
            answers = self.group.run(stage, "do", step.number, self._settled, step.work, fed, to_first=finish)
            step.references.append(answers)
            fed = answers[0]

    def answer(self, step: Step) -> Any:
        """The last stage's; as `answer_of`. All stages have done the step then, and all before it."""
        assert step.references is not None, "it was sent"
        answer = answer_of(self.group, step.references)
        self._settled = step.number
        return answer
