"""KernelLinear: a linear layer multiplied by our own CPU kernels (`linear.h` and `tiles.h` in `decoding/cpu/kernels`).

It runs on x86 processors with AVX2 or AVX-512. It reads its weight at the bandwidth of the memory, while oneDNN takes
up to twice as long for one to sixteen lines. The result of a line does not depend on the other lines, bit for bit, so
the text does not depend on the batch in bfloat16, either. `benchmarks/linears.py` prints the times.

Shapes: N lines, I inputs, O outputs, V lines of an embedding.
"""

import ctypes
from collections.abc import Callable, Mapping
from copy import copy
from functools import cache
from typing import Any, Self

import torch

from decoding.cpu.huge_pages import HugePages
from decoding.cpu.library import function
from decoding.fused import kernels

_DEPTHS = {torch.float32: 1, torch.bfloat16: 2}
_TILE = 32  # outputs of a block and inputs of a step in the layout for tiles


class KernelLinear(torch.nn.Module):
    """`nn.Linear` for inference on CPU; the operation that follows is done in the same pass over the outputs."""

    is_lent = False  # whether its memory is a file that others map, too
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

    @classmethod
    def of(cls, state: Mapping[str, Any], *, is_lent: bool = False) -> Self:
        """Return the layer whose `state` this is, over the same memory."""
        layer = cls.__new__(cls)
        torch.nn.Module.__init__(layer)
        vars(layer).update(state["numbers"])
        layer.bias, layer._packed, layer.is_lent = state["bias"], state["packed"].view(state["dtype"]), is_lent
        function = kernel_for(layer.dtype, layer.in_features)
        assert function is not None, "what was laid out here can be multiplied here"
        layer._function, layer._linear = function, layer.described()
        return layer

    def state(self) -> dict[str, Any]:
        """Return what describes the layer, with its weight as bytes."""
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        packed = self._packed.view(torch.uint8)
        return {"packed": packed, "dtype": self._packed.dtype, "bias": self.bias, "numbers": numbers}

    def move(self, packed: torch.Tensor, *, is_lent: bool) -> None:
        """Take the bytes of the same weight in other memory: describe the layer again."""
        self._packed, self.is_lent = packed.view(self._packed.dtype), is_lent
        self._linear = self.described()
        self._share()

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers, also of those that codes stand for."""
        return self._packed.dtype if self._packed.dtype in _DEPTHS else torch.float32

    @property
    def weight(self) -> torch.Tensor:
        """The weight [O, I] in plain order, as a copy for inspection."""
        return self.lines(torch.arange(self.out_features))

    def lines(self, index_N: torch.Tensor) -> torch.Tensor:
        """Return these lines of the weight, [N, I]."""
        index_N = index_N.to(torch.int64).contiguous()
        lines_NI = torch.empty(index_N.numel(), self.in_features, dtype=self.dtype)
        of_index = index_N.data_ptr(), index_N.numel(), lines_NI.element_size()
        are_there = _line_reader()(ctypes.addressof(self._linear), *of_index, lines_NI.data_ptr())
        assert are_there, "no such line"
        return lines_NI

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
        missing, weight_OI = (0, -self.in_features % step, 0, -self.out_features % columns), weight_OI.detach()
        if any(missing):  # padding by nothing would copy
            weight_OI = torch.nn.functional.pad(weight_OI, missing)
        return weight_OI.view(-1, columns, weight_OI.shape[1] // depth, depth).transpose(1, 2)

    def _run(self, linear: kernels.Linear, x: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
        if x.dtype != self.dtype or x.shape[-1] != self.in_features:
            what = f"a linear layer of {self.in_features} inputs in {self.dtype}"
            raise TypeError(f"{what} got {tuple(x.shape)} in {x.dtype}")
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


class PackedEmbedding(torch.nn.Module):
    """An embedding that reads the lines that are asked for from a layer, which may be the head of the same network."""

    def __init__(self, layer: KernelLinear, scale: torch.Tensor | None = None) -> None:
        """Read the weight of `layer`; lines are multiplied by `scale`."""
        super().__init__()
        self.scale = scale
        self._layer = (layer,)  # in a tuple: not a child here
        self.num_embeddings, self.embedding_dim = layer.out_features, layer.in_features

    @property
    def layer(self) -> KernelLinear:
        return self._layer[0]

    @property
    def weight(self) -> torch.Tensor:
        """The weight [V, I] in plain order, as a copy for inspection."""
        return self.layer.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the line of each id, [..., I]."""
        found = embedded(ids, self.layer)
        return found if self.scale is None else found * self.scale.to(found.dtype)

    def replace(self, weight_VI: torch.Tensor, _: object) -> None:
        """Take other numbers of the same shapes."""
        self.layer.replace(weight_VI, None)


def source_of(embedding: Any) -> Any:
    """Return what `embedded` reads of an embedding."""
    return embedding.layer if isinstance(embedding, PackedEmbedding) else embedding.weight


def embedded(ids: torch.Tensor, source: KernelLinear | torch.Tensor) -> torch.Tensor:
    """Return the line of each id, [..., I], in a packed layer or a weight, without any scale."""
    if isinstance(source, KernelLinear):
        return source.lines(ids.flatten()).view(*ids.shape, source.in_features)
    return torch.nn.functional.embedding(ids, source)


@cache
def _line_reader() -> Callable[..., bool]:
    arguments = *2 * [ctypes.c_void_p], *2 * [ctypes.c_int64], ctypes.c_void_p
    read = function("dray_read_lines", ctypes.c_bool, *arguments)
    assert read is not None, "there are such layers only where there are kernels"
    return read


def kernel_function(weight_OI: torch.Tensor) -> kernels.LinearFunction | None:
    """Return the kernel that multiplies such weights here; None if there is none."""
    return kernel_for(weight_OI.dtype, weight_OI.shape[1]) if weight_OI.device.type == "cpu" else None


def kernel_for(dtype: torch.dtype, num_inputs: int) -> kernels.LinearFunction | None:
    """Return the kernel that multiplies weights on the CPU with this number of inputs; None as `kernel_function`."""
    if dtype not in _DEPTHS or num_inputs % 2:
        return None
    return kernels.load_linear(dtype)
