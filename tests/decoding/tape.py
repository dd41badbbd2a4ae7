"""Tape: the operations of a recording of a stand-in for a GPU, and the memory that they read and write."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

Call = Callable[[], Any]


class Tape:
    """The operations of a recording. It holds aliases alone, so that what others hold can be counted."""

    def __init__(self, stream: Any, num_aliases: Counter[int]) -> None:
        self.stream, self.failure, self.multiplies = stream, None, False
        self._of_all_tapes = num_aliases
        self._calls: list[Call] = []
        self._aliases: list[torch.Tensor] = []
        self._storages: dict[int, torch.Tensor] = {}  # one alias of each
        self._num_aliases: Counter[int] = Counter()
        self._made: set[int] = set()
        self._before: dict[int, torch.Tensor] = {}  # copies of what the capture has changed, which is not its own
        self._freed: list[int] = []

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        number = number_of(tensor)
        if number is None:
            return tensor
        alias = tensor.detach()
        self._aliases.append(alias)
        if number not in self._storages:
            self._storages[number] = whole(tensor)
            self._num_aliases[number] += 1
            self._of_all_tapes[number] += 1
        self._num_aliases[number] += 1
        self._of_all_tapes[number] += 1
        return alias

    def __del__(self) -> None:
        self._of_all_tapes.subtract(self._num_aliases)

    def keep(self, tensors: list[torch.Tensor]) -> None:
        """Keep a copy of what is about to change and is not the capture's own."""
        with _disable_current_modes():
            for tensor in tensors:
                number = number_of(tensor)
                if number is not None and number not in self._made and number not in self._before:
                    self._before[number] = whole(tensor).clone()
                    self.alias(tensor)

    def add(self, call: Call, tensors: list[torch.Tensor]) -> None:
        self._calls.append(call)
        for tensor in tensors:
            self.alias(tensor)

    def add_operation(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        with _disable_current_modes():
            given = {number_of(each) for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)}
            outs = [each for each in tree_leaves(out) if isinstance(each, torch.Tensor)]
            if not func._schema.is_mutable:
                outs = [each for each in outs if number_of(each) not in given]
                if not outs:  # a view, or nothing
                    return
                self._made |= {number for each in outs if (number := number_of(each)) is not None}
            args, kwargs = tree_map_only(torch.Tensor, self.alias, (args, kwargs))
            mine = [self.alias(each) for each in outs]

        def call() -> None:
            found = [each for each in tree_leaves(func(*args, **kwargs)) if isinstance(each, torch.Tensor)]
            if not func._schema.is_mutable:
                for place, value in zip(mine, found, strict=True):
                    place.copy_(value)

        self._calls.append(call)

    def undo(self) -> None:
        """Change back what the capture changed: nothing has been done yet."""
        with _disable_current_modes(), torch.inference_mode():
            for number, before in self._before.items():
                self._storages[number].copy_(before)
            self._before.clear()

    def end_of_capture(self) -> None:
        self._freed = [number for number in self._made if number in self._storages and not self._is_held(number)]
        for number in self._made & self._storages.keys():
            noise(self._storages[number])

    def replay(self) -> None:
        for number in self._storages.keys() - self._made:
            if not self._is_held(number):
                noise(self._storages[number])  # an input that was freed
        for call in self._calls:
            call()
        for number in self._freed:
            noise(self._storages[number])

    def free_made(self) -> None:
        for number in self._made & self._storages.keys():
            if not self._is_held(number):
                noise(self._storages[number])

    def holds_made(self) -> bool:
        return any(self._is_held(number) for number in self._made & self._storages.keys())

    def _is_held(self, number: int) -> bool:
        """Tell whether something beside tapes has the memory."""
        return torch._C._storage_Use_Count(number) - 1 > self._of_all_tapes[number]  # to ask counts, too


def number_of(tensor: torch.Tensor) -> int | None:
    """Return what tells memory from other memory; None for tensors that have none of their own."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
    return storage._cdata if storage.nbytes() else None


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor's memory."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def noise(tensor: torch.Tensor) -> torch.Tensor:
    """Write what is no number over a tensor: NaN, and as an integer -1."""
    tensor.untyped_storage().fill_(255)
    return tensor
