"""LaunchCounter: how much the host starts on a device, and how often it waits for it.

A launch is an operation of torch on a tensor of the device, a copy to it, or a Triton kernel; a recorded graph is one
replay, whatever is in it. A host sync is a point where the host waits for queued work: it reads values, or a size that
depends on them (`nonzero`, a mask as an index), or copies in a way that blocks.

On a CPU nothing is ever queued, so the count is what it would be on a GPU: host values that become a tensor are a copy,
and `tolist` is a wait.

Operations are counted as torch dispatches them. One may start several kernels (a sort does), so that a profiler counts
more.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Count = Literal["launches", "replays", "host_syncs"]
_P = ParamSpec("_P")
_R = TypeVar("_R")
_STARTS_NOTHING = (
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
    *("_unsafe_view", "lift_fresh", "resize_"),
)
_WAITS = (
    *("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount"),
    *("_unique2", "unique_dim", "unique_consecutive"),
)
_COPIES = ("_to_copy", "copy_")
_INDEXING = ("index", "index_put", "index_put_")


@dataclass(frozen=True, kw_only=True)
class Launches:
    """What the host did."""

    launches: float = 0  # outside graphs
    replays: float = 0  # of graphs
    host_syncs: float = 0


class LaunchCounter:
    """Counts for one device, within `counting`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.counts = Launches()  # since `counting` was last entered
        self._is_part = False  # what happens now is part of what has been counted

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count from zero what the host does meanwhile."""
        self.counts = Launches()
        with ExitStack() as undo:
            for owner, name, count in _calls():
                undo.enter_context(patch.object(owner, name, self.as_one(getattr(owner, name), count)))
            undo.enter_context(_Functions(self))
            undo.enter_context(_Operations(self))
            yield

    def as_one(self, run: Callable[_P, _R], count: Count = "replays") -> Callable[_P, _R]:
        """Return a function that does what `run` does and counts as one: by default as the replay of a graph."""

        @wraps(run)
        def counted(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            self.add(count)
            was_part, self._is_part = self._is_part, True
            try:
                return run(*args, **kwargs)
            finally:
                self._is_part = was_part

        return counted

    def add(self, count: Count) -> None:
        """Add one to a count, unless what happens is part of what has been counted."""
        if not self._is_part:
            self.counts = replace(self.counts, **{count: getattr(self.counts, count) + 1})


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that torch dispatches to the device."""

    def __init__(self, counter: LaunchCounter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counter = counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:  # an operation that is made of others is counted as these
            out = func.decompose(*args, **kwargs)
        if out is NotImplemented:
            out = func(*args, **kwargs)
            self._count(func, args, kwargs, out)
        return out

    def _count(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        name, device = func.overloadpacket.__name__, self._counter.device.type
        places = {leaf.device.type for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)}
        if device not in places or name in _STARTS_NOTHING or _is_view(func):
            return
        blocks = name in _COPIES and len(places) > 1 and not (kwargs.get("non_blocking") or args[2:3] == (True,))
        if blocks or name in _WAITS or _asks_for_size(name, args, kwargs):
            self._counter.add("host_syncs")
        arrives = isinstance(out, torch.Tensor) and out.device.type != device
        if name != "_local_scalar_dense" and not (blocks and arrives):  # reading values is only a wait
            self._counter.add("launches")


class _Functions(TorchFunctionMode):
    """Counts what is not dispatched: host values that become a tensor, and values of a CPU's tensor that are read."""

    def __init__(self, counter: LaunchCounter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = self._counter.device.type
        if func is torch.tensor and (device == "cpu" or torch.device(kwargs.get("device") or "cpu").type == device):
            if kwargs.get("device") is not None:  # torch waits for this copy
                self._counter.add("host_syncs")
            func = self._counter.as_one(func, "launches")
        elif func in (torch.Tensor.tolist, torch.Tensor.numpy) and device == "cpu":
            self._counter.add("host_syncs")
        return func(*args, **kwargs)


def _calls() -> Iterator[tuple[Any, str, Count]]:
    """Yield what is counted beside torch's operations: owner and name of a function, and which count it is."""
    yield torch.cuda.CUDAGraph, "replay", "replays"
    yield torch.cuda, "synchronize", "host_syncs"
    yield torch.cuda.Event, "synchronize", "host_syncs"
    yield torch.cuda.Stream, "synchronize", "host_syncs"
    try:
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction
    except ImportError:
        return
    yield JITFunction, "run", "launches"
    yield InterpretedFunction, "run", "launches"


def _is_view(func: Any) -> bool:
    """Tell whether an operation returns another view of its input's memory, which takes no kernel."""
    aliases = [value.alias_info for value in func._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def _asks_for_size(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Tell whether the size of an operation's result depends on values, so that the host must read them."""
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    is_masked = name in _INDEXING and any(index is not None and index.dtype is torch.bool for index in args[1])
    return is_masked and (name == "index" or args[2].numel() > 1)
