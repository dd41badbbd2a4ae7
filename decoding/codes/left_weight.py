"""Weights that are left where they are: a module of torch makes its weight anew each time that it is asked for it.

Shapes: O outputs (or lines of an embedding), I inputs.
"""

from collections.abc import Callable
from typing import Any

import torch

from decoding.codes.weight import Codes


def leave_weight(module: torch.nn.Module, codes: Codes, read: Callable[[], torch.Tensor]) -> None:
    """Let a linear layer or an embedding have no weight in memory: `read` returns that which the codes stand for."""
    kind = type(module)
    del module._parameters["weight"]
    found: Any = module
    found.codes, found.read_weight = codes, read
    found._is_hf_initialized = isinstance(module, torch.nn.Linear)  # an embedding may have a scale that is still drawn
    module.__class__ = type(kind.__name__, (kind,), {"weight": property(_made)})


def _made(module: Any) -> torch.Tensor:
    weight_OI: torch.Tensor = module.read_weight()
    weight_OI._is_hf_initialized = True  # type: ignore[attr-defined]  # transformers draws no numbers for it
    return weight_OI


def take_weight(module: Any) -> None:
    """Let a module have its weight in memory again; raise an OSError or ValueError if it cannot be read."""
    weight_OI = module.read_weight()
    module.__class__ = type(module).__bases__[0]
    del module.codes, module.read_weight
    module.weight = torch.nn.Parameter(weight_OI, requires_grad=False)


def identity_of(module: Any) -> Any:
    """Return what modules of one weight have in common, without reading it: the codes, or else the weight itself."""
    return getattr(module, "codes", None) or module.weight
