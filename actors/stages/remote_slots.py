"""RemoteSlots: the slots of a session in all stages, as the engine sees them."""

from operator import methodcaller

from actors.stages.pipeline import StagePipeline
from actors.stages.work import Change, Work
from decoding.states.book import StateBook


class RemoteSlots:
    """The slots of a session in all stages, as a KVCache has them. Changes go out with the session's next step."""

    def __init__(self, pipeline: StagePipeline, session: int, states: StateBook | None) -> None:
        """Begin with empty slots; `states` is kept as the stages keep theirs."""
        self._pipeline, self._session, self._states = pipeline, session, states
        self._changes: list[Change] = []

    is_paged = False  # each slot of a stage has memory for all of its positions

    @property
    def has_states(self) -> bool:
        return self._states is not None

    def longest(self, slot: int, length: int) -> int:
        return length if self._states is None else self._states.longest(slot, length)

    def extend(self, work: Work) -> None:
        """Learn what the stages keep of the states of these rows."""
        if self._states is not None:
            for slot, start, length in zip(work.slots, work.starts, work.lengths, strict=True):
                self._states.extend(slot, start, length, keeps_each=not work.is_prompt)

    def reserve(self, slot: int, first: int, end: int) -> bool:
        return True

    def copy(self, source: int, target: int, length: int) -> None:
        if self._states is not None:
            self._states.copy(source, target, length)
        self._changes.append(methodcaller("copy", source, target, length))

    def swap(self, first: int, second: int, first_length: int, second_length: int) -> None:
        if self._states is not None:
            self._states.swap(first, second)
        self._changes.append(methodcaller("swap", first, second, first_length, second_length))

    def zero(self, slot: int) -> None:
        if self._states is not None:
            self._states.forget(slot)
        self._changes.append(methodcaller("zero", slot))

    def pretend(self, slot: int, length: int) -> None:
        if self._states is not None:
            self._states.pretend(slot, length)
        self._changes.append(methodcaller("pretend", slot, length))

    def is_finite(self, slot: int, length: int) -> bool:
        if self._changes:
            self._pipeline.send(Work(self._session, self.take_changes()), [])
        return self._pipeline.is_finite(self._session, slot, length)

    def take_changes(self) -> tuple[Change, ...]:
        """Return the changes since the last step, and forget them."""
        changes, self._changes = tuple(self._changes), []
        return changes
