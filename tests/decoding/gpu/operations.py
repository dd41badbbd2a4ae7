"""Operations: counts what is launched on a device, and what makes the host wait for it, as a CPU can tell.

On CUDA each counted operation is a launch (or several), and each counted wait stops the host until the device is idle.
Views and allocations start nothing. A Triton kernel is one operation, whatever it does inside.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime import KernelInterface

# Methods that read numbers of a tensor on the host. Of these, the dispatcher sees only some.
_READS = {"tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__"}
# Operations whose result has a shape that depends on numbers.
_SHAPED_BY_NUMBERS = {
    "aten.nonzero",
    "aten.masked_select",
    "aten.unique_dim",
    "aten._unique2",
    "aten.repeat_interleave",
}
_START_NOTHING = {
    "aten.empty",
    "aten.empty_like",
    "aten.new_empty",
    "aten.empty_strided",
    "aten.detach",
    "aten.lift_fresh",
}


class Operations:
    """What runs inside a `with` block: `launches` and `waits` by name."""

    def __init__(self) -> None:
        self.launches: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self._modes = (_Reads(self.waits), _Launches(self.launches, self.waits))

    def __enter__(self) -> "Operations":
        self._getitem, launches = KernelInterface.__getitem__, self.launches

        def counted(kernel: Any, grid: Any) -> Callable[..., None]:
            def launch(*args: Any, **kwargs: Any) -> None:
                launches[f"triton.{kernel.fn.__name__}"] += 1
                with _disable_current_modes(), torch._C.DisableTorchFunction():  # the interpreter's own copies
                    kernel.run(*args, grid=grid, warmup=False, **kwargs)

            return launch

        KernelInterface.__getitem__ = counted
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)
        KernelInterface.__getitem__ = self._getitem


class _Launches(TorchDispatchMode):
    def __init__(self, launches: Counter[str], waits: Counter[str]) -> None:
        super().__init__()
        self._launches, self._waits = launches, waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func._overloadpacket)
        if name in _SHAPED_BY_NUMBERS or (name.startswith("aten.index") and _has_mask(args)):
            self._waits[name] += 1
        if not func.is_view and name not in _START_NOTHING and name != "aten._local_scalar_dense":
            self._launches[name] += 1
        return func(*args, **(kwargs or {}))


class _Reads(TorchFunctionMode):
    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _READS:
            self._waits[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def _has_mask(args: Any) -> bool:
    """Tell whether an index is a mask: how many elements it takes is not known to the host."""
    indexes = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else []
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indexes)
