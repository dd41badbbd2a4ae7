"""Fp8Linear: a linear layer with FP8 weights, as published checkpoints have them, whose inputs are rounded to FP8 too.

Its tensors have the names that they have in the checkpoint. They are buffers: a network's parameters keep one dtype.

Shapes: N lines, I inputs, O outputs, G groups of inputs, S rows of scales.
"""

import logging
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.functional import silu

from decoding.fp8 import exact
from decoding.gpu.available import kernels_run_on

_DTYPES = (torch.bfloat16, torch.float16)
_OLDEST = (8, 9)  # the first compute capability with FP8 tensor cores

_log = logging.getLogger(__name__)


class Arithmetic(Protocol):
    """The two operations of a linear layer in FP8, on one kind of device, as `decoding/fp8/exact.py` defines them."""

    def quantize(self, x_NI: torch.Tensor, group_size: int, /) -> tuple[torch.Tensor, torch.Tensor]: ...
    def multiply(self, *args: Any, **kwargs: Any) -> torch.Tensor: ...


def arithmetic_on(device: torch.device) -> Arithmetic:
    """Return the fastest arithmetic on a device; raise a ValueError for a GPU without FP8 instructions."""
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < _OLDEST:
            raise ValueError(
                "need a GPU of compute capability 8.9 or later (L4, L40S, H100, B200), and "
                f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}; use the unquantized "
                "checkpoint on it"
            )
    if kernels_run_on(device):
        from decoding.gpu import fp8_linear

        return fp8_linear
    _log.warning("FP8 weights are multiplied by torch's float64 operations on this %s: exact, but slow", device.type)
    return exact


@dataclass(frozen=True)
class Scaling:
    """Which weights share a scale: a rectangle of outputs x inputs. Activations of a token share one by inputs."""

    name: str  # of the scales, beside `weight`
    outputs: int
    inputs: int | None  # None: all of them

    def group_size(self, num_inputs: int) -> int:
        """Return how many inputs of a layer share a scale."""
        return num_inputs if self.inputs is None else self.inputs

    def shape(self, num_outputs: int, num_inputs: int) -> tuple[int, int]:
        """Return the shape [S, G] of a layer's scales."""
        return -(-num_outputs // self.outputs), -(-num_inputs // self.group_size(num_inputs))


class Fp8Linear(torch.nn.Module):
    """`nn.Linear` for inference; results have the dtype of the inputs."""

    weight: torch.Tensor  # [O, I], float8_e4m3fn

    def __init__(
        self, num_inputs: int, num_outputs: int, has_bias: bool, scaling: Scaling, arithmetic: Arithmetic
    ) -> None:
        """Make a layer whose tensors are not initialized; a bias has torch's default dtype."""
        super().__init__()
        self.in_features, self.out_features = num_inputs, num_outputs
        self.scaling, self._arithmetic = scaling, arithmetic
        self._group_size = scaling.group_size(num_inputs)
        self.register_buffer("weight", torch.empty(num_outputs, num_inputs, dtype=torch.float8_e4m3fn))
        shape = scaling.shape(num_outputs, num_inputs)
        self.register_buffer(scaling.name, torch.empty(shape, dtype=torch.float32))
        self.bias = torch.nn.Parameter(torch.empty(num_outputs)) if has_bias else None

    @classmethod
    def side_by_side(cls, parts: "Seq[Fp8Linear]") -> "Fp8Linear":
        """Return one layer that computes what these compute, one after the other; `may_join` says whether it can."""
        first = parts[0]
        with torch.device("meta"):
            joined = cls(first.in_features, 0, False, first.scaling, first._arithmetic)
        joined.out_features = sum(part.out_features for part in parts)
        joined.weight = torch.cat([part.weight for part in parts])
        setattr(joined, first.scaling.name, torch.cat([part.scales for part in parts]))
        biases: list[torch.Tensor] = [part.bias for part in parts if part.bias is not None]
        joined.bias = torch.nn.Parameter(torch.cat(biases), requires_grad=False) if biases else None
        return joined

    @property
    def scales(self) -> torch.Tensor:
        """The scales of the weight [S, G], float32."""
        scales: torch.Tensor = getattr(self, self.scaling.name)
        return scales

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute `x W^T + b`, [..., O]. Raises TypeError for inputs that are not bfloat16 or float16."""
        return self._multiply(x, *self._quantize(x))

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Compute `(x W^T + b) + other`."""
        out: torch.Tensor = self(x) + other
        return out

    def gated(self, x: torch.Tensor, gate: "Fp8Linear") -> torch.Tensor:
        """Compute `silu(gate(x)) * (x W^T + b)`; the inputs are rounded once for both layers."""
        quantized = self._quantize(x)
        return silu(gate._multiply(x, *quantized)) * self._multiply(x, *quantized)

    def _quantize(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.dtype not in _DTYPES or x.shape[-1] != self.in_features:
            raise TypeError(
                f"a linear layer of {self.in_features} inputs with FP8 weights takes bfloat16 or float16, and got "
                f"{tuple(x.shape)} in {x.dtype}"
            )
        return self._arithmetic.quantize(x.reshape(-1, self.in_features), self._group_size)

    def _multiply(self, x: torch.Tensor, quantized_NI: torch.Tensor, scales_NG: torch.Tensor) -> torch.Tensor:
        weight = (self.weight, self.scales, self.scaling.outputs, self._group_size, self.bias)
        out_NO = self._arithmetic.multiply(quantized_NI, scales_NG, *weight, x.dtype)
        return out_NO.view(*x.shape[:-1], self.out_features)


def may_join(parent: torch.nn.Module, names: Seq[str]) -> bool:
    """Tell whether FP8 layers of these names could be one (`side_by_side`); true if none of them is FP8."""
    parts = [getattr(parent, name) for name in names if hasattr(parent, name)]
    quantized = [part for part in parts if isinstance(part, Fp8Linear)]
    is_whole = all(part.out_features % part.scaling.outputs == 0 for part in quantized[:-1])
    return is_whole and len(quantized) in (0, len(parts)) and len({part.bias is None for part in quantized}) <= 1


def weights_of(network: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the tensors of a network that a checkpoint fills: its parameters, and the FP8 weights with their scales."""
    yield from network.parameters()
    for module in network.modules():
        if isinstance(module, Fp8Linear):
            yield from (module.weight, module.scales)
