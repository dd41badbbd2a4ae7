"""Recordings: work on the device by its shape, recorded when a shape occurs for the second time, and then replayed."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from decoding.fused.recording import Recorder, Recording, record_if_possible

_MOST_RECORDED = 256

Key = tuple[int, ...]  # sizes
_Inputs = TypeVar("_Inputs")


class _Shape(Generic[_Inputs]):
    """Work of one shape, its recording, and the tensors that it reads."""

    def __init__(self, inputs: _Inputs) -> None:
        self.inputs = inputs
        self.was_run = False
        self.recording: Recording | None = None


class Recordings(Generic[_Inputs]):
    """At most 256 recordings; the one that was used longest ago makes room.

    Work that reads the output of other work has a key that begins with the other's key: both are forgotten together.
    """

    def __init__(self, record: Recorder | None, what: str) -> None:
        """Record with `record` (None: everything is run each time); `what` names the work in the log."""
        self.record, self._what = record, what
        self._shapes: OrderedDict[Key, _Shape[_Inputs]] = OrderedDict()  # the most recently used at the end

    def inputs(self, key: Key, make: Callable[[], _Inputs]) -> _Inputs:
        """Return the tensors that the work of this key reads; those that `make` returns if it is a new one."""
        if key not in self._shapes:
            if len(self._shapes) >= _MOST_RECORDED:
                oldest = next(iter(self._shapes))
                for other in [other for other in self._shapes if other[: len(oldest)] == oldest]:
                    del self._shapes[other]
            self._shapes[key] = _Shape(make())
        self._shapes.move_to_end(key)
        return self._shapes[key].inputs

    def run(self, key: Key, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Replay the recording of a key with inputs; a run comes before it is recorded: kernels are compiled in it."""
        shape = self._shapes[key]
        if shape.was_run and shape.recording is None and self.record is not None:
            shape.recording = record_if_possible(self.record, work, self._what)
            if shape.recording is None:
                self.record = None
        if shape.recording is None:
            shape.was_run = True
            return work()
        shape.recording.replay()
        return shape.recording.output

    def record_anew(self) -> None:
        """Drop what was recorded, because it writes to tensors that are replaced."""
        for shape in self._shapes.values():
            shape.recording = None

    def forget(self) -> None:
        """Drop all shapes, and give back their memory with the next `torch.cuda.empty_cache`."""
        self._shapes.clear()
