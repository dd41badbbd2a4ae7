"""Model files of transformers, read as text: which classes keep states, by the calls of a cache that they make."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

RECURRENT_CALLS = (".update_recurrent_state(", ".set_linear_cache(")
_STATE_CALLS = (".update_conv_state(", *RECURRENT_CALLS)
_SOURCES: dict[type[Any], str] = {}  # read once: a network has many modules of few classes


def may_keep_states(config: type[Any], network: str) -> bool:
    """Tell whether the network of that name may keep states, by the model files beside its configuration's class.

    No model file is loaded: that takes seconds. Where these do not define the network, it may.
    """
    files = [file.read_text() for file in Path(inspect.getfile(config)).parent.glob("modeling_*.py")]
    is_defined = any(f"class {network}(" in file for file in files)
    return not is_defined or any("_is_stateful" in file or _num_calls(file) > 0 for file in files)


def asks_cache_for_states(network: type[torch.nn.Module]) -> bool:
    """Tell whether the model file of a network's class keeps states in the cache that it is given."""
    return _num_calls(inspect.getsource(sys.modules[network.__module__])) > 0


def keeps_states_outside_modules(network: type[torch.nn.Module]) -> bool:
    """Tell whether that file keeps some in functions that are no methods of a module, where they are not looked for."""
    file = sys.modules[network.__module__]
    kinds = [kind for kind in vars(file).values() if isinstance(kind, type) and issubclass(kind, torch.nn.Module)]
    methods = {method for kind in kinds for method in _methods(kind) if method.__module__ == file.__name__}
    return sum(_num_calls(_source(method)) for method in methods) < _num_calls(inspect.getsource(file))


def keeps_states(kind: type[torch.nn.Module]) -> bool:
    """Tell whether a class keeps states, in its `forward` or in a method that helps it."""
    return _num_calls(source_of(kind)) > 0


def source_of(kind: type[Any]) -> str:
    """Return the text of a class's methods, without those that torch's modules have."""
    if kind not in _SOURCES:
        _SOURCES[kind] = "\n".join(map(_source, _methods(kind)))
    return _SOURCES[kind]


def _methods(kind: type[Any]) -> Iterator[FunctionType]:
    for _, method in inspect.getmembers(kind, inspect.isfunction):
        if not method.__module__.startswith("torch."):
            yield method


def _source(method: FunctionType) -> str:
    with suppress(OSError, TypeError):  # it was not written in a file
        return inspect.getsource(method)
    return ""


def _num_calls(source: str) -> int:
    return sum(source.count(call) for call in _STATE_CALLS)
