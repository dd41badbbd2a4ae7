"""RemoteSlots: what the engine does with whole slots of a target in stages."""

from __future__ import annotations

from actors.stages.pipeline import StagePipeline
from actors.stages.slot_mirror import change_lengths
from actors.stages.step import Step
from actors.stages.work import Change, Copy, Swap, Work, Zero


class RemoteSlots:
    """The slots of a session. What is done to them goes out with its next step."""

    def __init__(self, pipeline: StagePipeline, session: int, num_positions: int) -> None:
        """Of one session."""
        self.num_positions = num_positions
        self._pipeline, self._session = pipeline, session
        self._changes: list[Change] = []

    def copy(self, source: int, target: int, length: int) -> None:
        """As `KVCache.copy`."""
        self._changes.append(Copy(source, target, length))

    def swap(self, first: int, second: int, first_length: int, second_length: int) -> None:
        """As `KVCache.swap`."""
        self._changes.append(Swap(first, second, first_length, second_length))

    def zero(self, slot: int) -> None:
        """As `KVCache.zero`."""
        self._changes.append(Zero(slot))

    def is_finite(self, slot: int, length: int) -> bool:
        """As `KVCache.is_finite`; false also where so much does not stand there, because a stage died over it."""
        if self._changes:
            self._pipeline.send(Step(Work(self._session, self.take_changes())))
        return self._pipeline.is_finite(self._session, slot, length)

    def take_changes(self) -> tuple[Change, ...]:
        """What has been done to the slots since the last step."""
        changes, self._changes = tuple(self._changes), []
        return changes

    def lengths(self) -> list[int]:
        """How many tokens each slot holds, changes and steps on their way included."""
        lengths = self._pipeline.lengths(self._session)
        change_lengths(lengths, self._changes)
        return lengths
