"""StandInGpu: a device that lies as CUDA does, on a CPU, so that what is wrong there goes wrong here.

It takes the place of what `torch.cuda` has for graphs, streams and events, so that the recorder itself runs over it:

- A recording is a tape of operations. Nothing is done while it is recorded: what it changed is changed back, and what
  it made is noise. A replay does the operations again, over the same memory. Python does not run again.
- Memory is reused at once: what a recording made and nothing holds is noise after each replay, and so is what it made
  once it has ended. An input that has been freed is noise, too.
- A copy to the host arrives late, when the host waits for the device, in stream order.
- A capture is refused where CUDA refuses it: a value is read, a value comes from the host, an operation runs that has
  never run, another capture is under way, a graph ends. So is one into a pool whose graphs have all ended (torch 2.11).
- With a graph the library's workspace of its stream goes: other graphs of that stream then fail (torch 2.12 and 2.13).
- An allocation that is larger than `largest` bytes fails. After a fault every call fails.
"""

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from decoding.cache import kv_cache
from decoding.fused.graphs import Forward, ForwardGraphs
from decoding.fused.recordings import CudaRecorder
from decoding.gpu.available import is_interpreted
from decoding.network import language_model, stage
from decoding.sampling.verdicts import OnItsWay, Verdicts
from tests.decoding.tape import Call, Tape, noise

FAULT = "CUDA error: an illegal memory access was encountered"
NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
NO_WORKSPACE = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
_WAITS = {"item", "_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "lift_fresh", "unique"}
_PRODUCTS = {"mm", "addmm", "bmm", "linear", "matmul", "mkldnn::_linear_pointwise"}  # of the library


class StandInGpu(TorchDispatchMode):
    """One device. As a context, all operations of this thread are its own."""

    def __init__(self) -> None:
        super().__init__()
        self.largest: int | None = None  # bytes
        self.memory = 80 << 30, 80 << 30  # bytes, free and in all
        self.has_workspace = True  # whether there is memory for the library's
        self.has_failed = False
        self.refuses = False  # to record anything
        self.num_captured = self.num_refused = self.num_replays = self.num_waits = 0
        self.num_idle_waits = 0  # behind which the device has no recording to do
        self.default_stream: object = _Stream()
        self.stream = self.default_stream
        self._tape: Tape | None = None
        self._has_run: set[Any] = set()
        self._num_aliases: Counter[int] = Counter()  # of tapes, by memory
        self._ended: list[Tape] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def install(self, patch: pytest.MonkeyPatch) -> "StandInGpu":
        """Take the place of CUDA in `torch.cuda` and where verdicts begin."""
        for name, value in {
            "CUDAGraph": lambda: _Graph(self),
            "Event": lambda: _Event(self),
            "Stream": _Stream,
            "current_stream": lambda: self.stream,
            "empty_cache": self.reuse_memory,
            "graph": self.capture,
            "graph_pool_handle": _Pool,
            "mem_get_info": lambda *_: self.memory,
            "is_current_stream_capturing": lambda: self._tape is not None,
            "set_stream": lambda stream: setattr(self, "stream", stream),
            "synchronize": lambda *_: self.wait(),
        }.items():
            patch.setattr(torch.cuda, name, value)
        empty, columns, zeros = torch.empty, Verdicts.columns, kv_cache.zeros_in_small_pages
        patch.setattr(kv_cache, "zeros_in_small_pages", lambda num_bytes: self._allocated(zeros(num_bytes)))
        patch.setattr(torch, "empty", lambda *args, pin_memory=False, **kwargs: empty(*args, **kwargs))
        patch.setattr(Verdicts, "columns", lambda *args: self.on_device(columns(*args)))
        if is_interpreted():
            from triton.runtime.interpreter import GridExecutor

            run = GridExecutor.__call__

            def launch(kernel: Any, *args: Any, **kwargs: Any) -> None:
                given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
                self.launch(kernel.fn.__name__, partial(run, kernel, *args, **kwargs), given)

            patch.setattr(GridExecutor, "__call__", launch)
            sent = "decoding.engine.rounds.overlapped.rounds.OnItsWay"
            patch.setattr(sent, lambda numbers: OnItsWay(self.on_device(numbers)))
        return self

    def fault(self) -> None:
        """Let the device fail."""
        self.has_failed = True

    def check(self) -> None:
        """Raise what every call raises after a fault."""
        if self.has_failed:
            raise torch.AcceleratorError(FAULT)

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that says it is on this device; a copy of it to the host arrives late."""
        lent: _OnDevice = tensor.as_subclass(_OnDevice)
        lent.gpu = self
        return lent

    def wait(self, num_copies: int | None = None) -> None:
        """Let the copies to the host arrive, the first `num_copies` or all: the host waits for them."""
        self.check()
        self.num_waits += 1
        arrived, self._copies = self._copies[:num_copies], self._copies[len(self._copies[:num_copies]) :]
        with _disable_current_modes():
            for on_host, values in arrived:
                on_host.copy_(values)

    def send(self, on_host: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Begin a copy to the host. Until it arrives, there is noise."""
        self._copies.append((on_host, values.clone()))
        return noise(on_host)

    @property
    def num_sent(self) -> int:
        """The number of copies that are on their way."""
        return len(self._copies)

    def reuse_memory(self) -> None:
        """Write noise where recordings have ended and nothing holds what they made."""
        if self._ended:
            for tape in self._ended:
                tape.free_made()
            self._ended = [tape for tape in self._ended if tape.holds_made()]

    @contextmanager
    def capture(self, graph: "_Graph", *, pool: "_Pool", stream: "_Stream", **_: object) -> Iterator[None]:
        """Record what is done on the tape of `graph`."""
        self.check()
        if self._tape is not None or self.refuses or pool.has_ended:
            self.num_refused += 1
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED" if pool.has_ended else NOT_PERMITTED)
        before, self.stream = self.stream, stream
        self._tape = tape = Tape(stream, self._num_aliases)
        try:
            if gc.isenabled():
                gc.collect()
            with nullcontext() if self in _get_current_dispatch_mode_stack() else self:
                yield
            if tape.failure is not None:
                raise RuntimeError(tape.failure)
        except RuntimeError:
            self.num_refused += 1
            tape.undo()
            raise
        finally:
            self._tape = None
        tape.undo()
        tape.end_of_capture()
        graph.begin(tape, pool)
        self.num_captured += 1
        self.stream = before

    def end(self, graph_tape: "Tape", pool: "_Pool") -> None:
        """End a graph: its memory is free, its stream's workspace goes, and a pool without graphs is no pool more."""
        if self._tape is not None:
            self._tape.failure = NOT_PERMITTED  # to free memory is none of what a capture permits
        graph_tape.stream.num_ended += 1
        pool.num_living -= 1
        pool.has_ended = pool.num_living == 0
        self._ended.append(graph_tape)

    def launch(self, name: str, call: Call, tensors: list[torch.Tensor]) -> None:
        """Start a kernel that changes any of these tensors."""
        self.check()
        with _disable_current_modes():
            if self._tape is None:
                self._has_run.add(name)
                call()
                return
            if name not in self._has_run:
                self._tape.failure = NOT_PERMITTED
            self._tape.keep(tensors)
            call()
            self._tape.add(call, tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.check()
        kwargs = kwargs or {}
        if self._tape is None:
            self._has_run.add(func._overloadpacket)
            self.reuse_memory()
            return self._allocated(func(*args, **kwargs))
        name = func._schema.name.removeprefix("aten::")
        if name in _WAITS or func._overloadpacket not in self._has_run or (name == "index" and _picks_by_mask(args)):
            self._tape.failure = NOT_PERMITTED
            raise torch.AcceleratorError(f"{NOT_PERMITTED} ({name})")
        if name in _PRODUCTS:
            if not self.has_workspace:
                raise RuntimeError(NO_WORKSPACE)
            self._tape.multiplies = True
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if func._schema.is_mutable:
            self._tape.keep(given)
        out = self._allocated(func(*args, **kwargs))
        self._tape.add_operation(func, args, kwargs, out)
        return out

    def _allocated(self, out: Any) -> Any:
        for each in () if self.largest is None else tree_leaves(out):
            if isinstance(each, torch.Tensor) and each.nbytes > self.largest:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {each.nbytes} bytes.")
        return out


def record_forwards(patch: pytest.MonkeyPatch) -> None:
    """Let fused models and stages be recorded by `CudaRecorder` on the CPU as well."""

    def on_any(_: torch.device, forward: Forward, *, has_head: bool = True) -> ForwardGraphs:
        return ForwardGraphs(forward, CudaRecorder(), has_head=has_head)

    for module in (language_model, stage):
        patch.setattr(module, "graphs_on", on_any)


class _Stream:
    num_ended = 0  # graphs of it


class _Pool:
    num_living = 0  # graphs in it
    has_ended = False


class _Graph:
    """A CUDAGraph."""

    def __init__(self, gpu: StandInGpu) -> None:
        self._gpu, self._tape = gpu, None

    def begin(self, tape: "Tape", pool: _Pool) -> None:
        self._tape, self._num_ended = tape, tape.stream.num_ended
        pool.num_living += 1
        weakref.finalize(self, self._gpu.end, tape, pool)

    def replay(self) -> None:
        gpu, tape = self._gpu, self._tape
        gpu.check()
        if tape.multiplies and tape.stream.num_ended != self._num_ended:
            gpu.fault()  # it writes to the workspace of its stream, which another graph has taken along
            gpu.check()
        gpu.reuse_memory()
        gpu.num_replays += 1
        with _disable_current_modes(), torch.inference_mode():
            tape.replay()


class _Event:
    """A CUDA event."""

    def __init__(self, gpu: StandInGpu) -> None:
        self._gpu, self._num_copies, self._num_replays = gpu, 0, 0

    def record(self) -> None:
        self._num_copies, self._num_replays = self._gpu.num_sent, self._gpu.num_replays

    def synchronize(self) -> None:
        self._gpu.num_idle_waits += self._gpu.num_replays == self._num_replays
        self._gpu.wait(self._num_copies)


class _OnDevice(torch.Tensor):
    """A tensor that says it is on the device."""

    gpu: StandInGpu

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gpu = next(each.gpu for each in tree_leaves((args, kwargs or {})) if isinstance(each, _OnDevice))
        if func == torch.Tensor.device.__get__:
            return torch.device("cuda")
        if func == torch.Tensor.is_cuda.__get__:
            return True
        if func == torch.Tensor.copy_ and (kwargs or {}).get("non_blocking"):
            return gpu.send(args[0], args[1].as_subclass(torch.Tensor))
        found = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(found, _OnDevice):
            found.gpu = gpu
        return found


def _picks_by_mask(args: Any) -> bool:
    """Tell whether an index is a mask, of which the device must count what is true."""
    return any(isinstance(each, torch.Tensor) and each.dtype is torch.bool for each in args[1])
