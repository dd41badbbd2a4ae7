"""Recordings: work on the device by its shape, recorded when a shape occurs for the second time, and then replayed."""

from collections import OrderedDict
from collections.abc import Callable

import torch

from decoding.fused.recording import Recorder, Recording, record_if_possible

_MOST_RECORDED = 256

# A kind ("draft" or "verify"), rows, stop ids, drafted tokens, positions; of a verification also tokens.
Key = tuple[int | str, ...]


class _Shape:
    """Work of one shape, and its recording."""

    def __init__(self) -> None:
        self.was_run = False
        self.recording: Recording | None = None


class Recordings:
    """The recordings of a lane's rounds, at most 256; the one that was used longest ago makes room."""

    def __init__(self, record: Recorder | None) -> None:
        """Record with `record`; None: everything is run each time."""
        self._record = record
        self._shapes: OrderedDict[Key, _Shape] = OrderedDict()  # the most recently used at the end

    def run(self, key: Key, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Replay the recording of this key; a run comes before it is recorded, since kernels are compiled in it."""
        shape = self._shapes.setdefault(key, _Shape())
        self._shapes.move_to_end(key)
        if len(self._shapes) > _MOST_RECORDED:
            self._forget(next(iter(self._shapes)))
        if shape.was_run and shape.recording is None and self._record is not None:
            shape.recording = record_if_possible(self._record, work, "rounds")
            if shape.recording is None:
                self._record = None
        if shape.recording is None:
            shape.was_run = True
            return work()
        shape.recording.replay()
        return shape.recording.output

    def _forget(self, key: Key) -> None:
        """Drop a recording; with a draft go the verifications that read its output."""
        kind, *sizes = key
        last = len(sizes) + 1
        for other in [other for other in self._shapes if kind == "draft" and [*other[1:last]] == sizes]:
            del self._shapes[other]
        self._shapes.pop(key, None)
