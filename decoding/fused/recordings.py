"""Recordings: work of a device that is recorded once for each shape and replayed, with all its kernels started at once.

A recording reads and writes fixed addresses: what it reads is copied into tensors of its own before a replay.
"""

import gc
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import torch

from decoding.device import is_device_fault, is_out_of_memory

# Kernels of a layer in a recording: four products, three that add their parts (two norms, the heads' rotation), and
# attention, if one program has all of a row. A layer with more norms has more of them.
LAYER_KERNELS = 8
_MOST_RECORDED = 256
_log = logging.getLogger(__name__)


class Recording(Protocol):
    """Work that was recorded."""

    output: torch.Tensor  # of the last replay

    def replay(self) -> None:
        """Do the work again; the output is overwritten."""


Recorder = Callable[[Callable[[], torch.Tensor]], Recording]  # records what has run before
Key = tuple[int, ...]  # sizes
_Inputs = TypeVar("_Inputs")


class _Shape(Generic[_Inputs]):
    """Work of one shape, its recording, and the tensors that it reads."""

    def __init__(self, inputs: _Inputs) -> None:
        self.inputs = inputs
        self.was_run = False
        self.recording: Recording | None = None


class Recordings(Generic[_Inputs]):
    """At most 256 recordings. One more, and all are forgotten.

    None ends alone: with one graph of a stream torch frees the workspace of the library's products, to which the other
    graphs of that stream still write. Work that reads the output of other work has a key that begins with the other's
    key, and both are recorded anew in the same round.
    """

    def __init__(self, record: Recorder | None, what: str) -> None:
        """Record with `record` (None: everything is run each time); `what` names the work in the log."""
        self.record, self._what = record, what
        self.refusal = ""  # why nothing is recorded any more
        self._shapes: dict[Key, _Shape[_Inputs]] = {}

    def inputs(self, key: Key, make: Callable[[], _Inputs]) -> _Inputs:
        """Return the tensors that the work of this key reads; those that `make` returns if it is a new one."""
        if key not in self._shapes:
            if len(self._shapes) >= _MOST_RECORDED:
                self.record_anew()
                self._shapes = {other: shape for other, shape in self._shapes.items() if key[: len(other)] == other}
            self._shapes[key] = _Shape(make())
        return self._shapes[key].inputs

    def run(self, key: Key, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Replay the recording of a key with inputs; a run comes before it is recorded: kernels are compiled in it.

        Where a driver or an operation refuses to record, everything is run: slower, but correct; the log says so.
        Raises where memory ran out (the engine answers with fewer slots, and records anew) or the device failed.
        """
        shape = self._shapes[key]
        if shape.was_run and shape.recording is None and self.record is not None:
            try:
                shape.recording = self.record(work)
            except RuntimeError as error:
                if is_out_of_memory(error) or is_device_fault(error):
                    raise
                self.refusal = f"{self._what} cannot be recorded here ({error}): each starts its kernels one by one"
                _log.warning(self.refusal)
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


class CudaRecorder:
    """Records CUDA graphs that share their memory, since one of them runs at a time.

    They are captured on a stream of their own: the library's products keep a workspace for each stream, and the end of
    any graph of that stream may take it away. So the graphs of a recorder end together. Memory that is shared ends with
    the last graph in it: the next recording begins anew, in a new pool, because torch takes no more graphs into one
    that has lost all.
    """

    _one_at_a_time = threading.Lock()  # torch captures one graph at a time in a process

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._living = weakref.WeakSet[_CudaRecording]()

    def __call__(self, run: Callable[[], torch.Tensor]) -> Recording:
        """Record `run`, which has run before."""
        with self._one_at_a_time:
            if self._stream is None:
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            if not self._living:
                self._pool = torch.cuda.graph_pool_handle()
            recording = _CudaRecording(run, self._pool, self._stream)
            self._living.add(recording)
        return recording


class _CudaRecording:
    """A CUDA graph: a recorded run."""

    output: torch.Tensor

    def __init__(self, run: Callable[[], torch.Tensor], pool: Any, stream: torch.cuda.Stream) -> None:
        self._graph = torch.cuda.CUDAGraph()
        before, collects = torch.cuda.current_stream(), gc.isenabled()
        gc.disable()  # what is collected may free memory of the device, which a capture does not allow
        try:
            with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                self.output = run()
        except RuntimeError:
            torch.cuda.set_stream(before)  # a capture that fails leaves its own stream current
            raise
        finally:
            if collects:
                gc.enable()

    def replay(self) -> None:
        self._graph.replay()


def rounded(number: int) -> int:
    """Round up to one of four sizes between a power of two and the next, so that a recording serves many rounds."""
    step = 1 << max(0, (number - 1).bit_length() - 3)
    return -(-number // step) * step


def power_of_two(number: int) -> int:
    """Round up to a power of two."""
    return 1 << (number - 1).bit_length()
