"""KernelLinear: a linear layer multiplied by our own CPU kernels (`linear.h` and `tiles.h` in `decoding/cpu/kernels`).

It runs on x86 processors with AVX2 or AVX-512. It reads its weight at the bandwidth of the memory, while oneDNN takes
up to twice as long for one to sixteen lines. The result of a line does not depend on the other lines, bit for bit, so
the text does not depend on the batch in bfloat16, either. `benchmarks/linears.py` prints the times.

Shapes: N lines, I inputs, O outputs.
"""

import ctypes
from copy import copy
from typing import Self

import torch

from decoding.cpu.huge_pages import HugePages
from decoding.fused import kernels

_DEPTHS = {torch.float32: 1, torch.bfloat16: 2}
_TILE = 32  # outputs of a block and inputs of a step in the layout for tiles


class KernelLinear(torch.nn.Module):
    """`nn.Linear` for inference on CPU; the operation that follows is done in the same pass over the outputs."""

    _form = 0  # of codes (codes.h) or for tiles (tiles.h); 0: plain numbers
    _halves: tuple["KernelLinear", ...] = ()

    def __init__(
        self,
        weight_OI: torch.Tensor,
        bias_O: torch.Tensor | None,
        function: kernels.LinearFunction,
        memory: HugePages | None = None,
    ) -> None:
        """Lay out a copy of the weight in `memory` for the kernel function of its dtype."""
        super().__init__()
        self.out_features, self.in_features = weight_OI.shape
        # A copy that is no parameter: the kernel has its address, so it must not move.
        self.bias: torch.Tensor | None = None if bias_O is None else bias_O.detach().clone()
        self._function = function
        self._form = kernels.tile_form(weight_OI.dtype)
        packed = self._laid_out(weight_OI)
        self._packed = packed.contiguous() if memory is None else memory.copy(packed)
        self._linear = self.described()

    @property
    def weight(self) -> torch.Tensor:
        """The weight [O, I] in plain order, as a copy for inspection."""
        padded_OI = self._packed.transpose(1, 2).flatten(0, 1).flatten(1)
        return padded_OI[: self.out_features, : self.in_features]

    def replace(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        """Take other numbers of the same shapes, in the memory of those in use."""
        self._packed.copy_(self._laid_out(weight_OI))
        if self.bias is not None and bias_O is not None:
            self.bias.copy_(bias_O)

    def forward(self, x_NI: torch.Tensor) -> torch.Tensor:
        """Compute `x W^T + b`, [..., O]."""
        return self._run(self._linear, x_NI, None)

    def plus(self, x_NI: torch.Tensor, other_NO: torch.Tensor) -> torch.Tensor:
        """Compute `(x W^T + b) + other`, rounded once."""
        return self._run(self._linear, x_NI, other_NO)

    def gated(self, x_NI: torch.Tensor, gate: "KernelLinear") -> torch.Tensor:
        """Compute `silu(gate(x)) * (x W^T + b)`, rounded once."""
        return self._run(self.described(gate), x_NI, None)

    def halves(self) -> tuple[Self, Self]:
        """Return two layers over this one's memory, each with half of the outputs; blocks must belong to one half."""
        assert self.bias is None, "a product of two has no bias"
        halves = copy(self), copy(self)
        self._halves = halves
        self._share()
        return halves

    def _share(self) -> None:
        """Give the halves of this layer, if there are any, its memory."""
        for half, packed in zip(self._halves, self._packed.chunk(2), strict=False):
            half.out_features, half._form, half._packed = self.out_features // 2, self._form, packed
            half._linear = half.described()

    def described(
        self, gate: "KernelLinear | None" = None, *, gate_is_gelu: bool = False, scale: float = 1.0
    ) -> kernels.Linear:
        """Describe the layer and its gate for the kernel, by addresses: keep both layers alive."""
        return kernels.Linear(
            self._packed.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
            None if gate is None else gate._packed.data_ptr(),
            None if gate is None or gate.bias is None else gate.bias.data_ptr(),
            self.in_features,
            self.out_features,
            self._form,
            0 if gate is None else gate._form,
            scale,
            gate_is_gelu,
        )

    def _laid_out(self, weight_OI: torch.Tensor) -> torch.Tensor:
        """Return a view of the weight, padded to whole columns (and whole steps of tiles), in the kernel's order."""
        depth = _DEPTHS[weight_OI.dtype]
        is_tiled = self._form and weight_OI.dtype == torch.bfloat16  # a form of float32 is one of codes
        columns, step = (_TILE, _TILE) if is_tiled else (kernels.linear_columns(), depth)
        missing = (0, -self.in_features % step, 0, -self.out_features % columns)
        weight_OI = torch.nn.functional.pad(weight_OI.detach(), missing)
        return weight_OI.view(-1, columns, weight_OI.shape[1] // depth, depth).transpose(1, 2)

    def _run(self, linear: kernels.Linear, x: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
        dtype = self._packed.dtype if self._packed.dtype in _DEPTHS else torch.float32  # and not of codes
        if x.dtype != dtype or x.shape[-1] != self.in_features:
            raise TypeError(f"a linear layer of {self.in_features} inputs in {dtype} got {tuple(x.shape)} in {x.dtype}")
        x = x.contiguous()
        shape = (*x.shape[:-1], self.out_features)
        out = torch.empty(shape, dtype=x.dtype)
        if added is not None:
            if added.dtype != x.dtype or added.shape != shape:
                raise TypeError(f"cannot add {tuple(added.shape)} in {added.dtype} to {shape} in {x.dtype}")
            added = added.contiguous()
        self._function(
            ctypes.byref(linear),
            x.data_ptr(),
            x.numel() // self.in_features,
            None if added is None else added.data_ptr(),
            out.data_ptr(),
        )
        return out


def kernel_function(weight_OI: torch.Tensor) -> kernels.LinearFunction | None:
    """Return the kernel that multiplies such weights here; None if there is none."""
    return kernel_for(weight_OI.dtype, weight_OI.shape[1]) if weight_OI.device.type == "cpu" else None


def kernel_for(dtype: torch.dtype, num_inputs: int) -> kernels.LinearFunction | None:
    """Return the kernel that multiplies weights on the CPU with this number of inputs; None as `kernel_function`."""
    if dtype not in _DEPTHS or num_inputs % 2:
        return None
    return kernels.load_linear(dtype)
