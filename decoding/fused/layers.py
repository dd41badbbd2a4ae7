"""The decoder layers of a fused network: one by one around its attention, or all of them by one call of our kernels.

Between two operations of a layer Python takes some 5 microseconds, and a small model has hundreds of operations. So
where our kernels multiply, `decoding/cpu/kernels/decoder.h` runs all layers.

Shapes: N tokens, E hidden size, X any number of features.
"""

import ctypes
import weakref
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch.nn.functional import gelu, silu

from decoding.cache.features import Features
from decoding.cache.kv_cache import KVCache
from decoding.families.description import LayerKind
from decoding.families.family import Family
from decoding.families.norms import torch_norm
from decoding.fp8.linear import Fp8Linear
from decoding.fused import kernels
from decoding.fused.attention import Heads, KernelAttention, Norms, layer_cache
from decoding.fused.linear import KernelLinear
from decoding.fused.packed_linear import InvariantLinear, LinearSlice, Packed
from decoding.gpu.available import kernels_run_on
from decoding.ranks.shares import SummedLinear, part_of

# Lines, weight, epsilon; for families whose norms are others than Llama's also the offset, and whether it is centered.
NormFunction = Callable[..., torch.Tensor]
_LLAMA, _PLAIN = Family(), LayerKind()


def operations_on(
    device: torch.device, dtype: torch.dtype, head_size: int, hidden_size: int
) -> tuple[kernels.Kernels | None, NormFunction]:
    """Return our CPU kernels for such layers, None where there are none, and the fastest norm on this device."""
    if kernels_run_on(device):
        from decoding.gpu.linear import rms_norm as gpu_norm  # Triton is only where the kernels run

        return None, gpu_norm
    found = kernels.load(dtype, head_size, hidden_size) if device.type == "cpu" else None
    return found, torch_norm if found is None else found.rms_norm


class Norm:
    """Root mean square normalization of lines; without a module lines stay as they are."""

    def __init__(self, module: Any, function: NormFunction, family: Family = _LLAMA) -> None:
        self.weight: Any = None if module is None else module.weight
        self.epsilon = 0.0 if module is None else _epsilon(module)
        self._function, self._others = function, (family.norm_offset, family.norm_is_centered)
        # The GPU's function computes Llama's norms only.
        self._given = self._others if any(self._others) else ()

    def __call__(self, x_NE: torch.Tensor) -> torch.Tensor:
        return x_NE if self.weight is None else self._function(x_NE, self.weight, self.epsilon, *self._given)

    @property
    def is_llamas(self) -> bool:
        """Whether there is a norm, and it is the one that our GPU kernels compute."""
        return self.weight is not None and not any(self._others)

    def described(self) -> kernels.Norm:
        """Describe the norm for the kernel, by the address of its weight."""
        return kernels.Norm(None if self.weight is None else self.weight.data_ptr(), self.epsilon, *self._others)


class Layer:
    """The parts of one decoder layer, and what it computes around its attention."""

    def __init__(
        self,
        layer: Any,
        norm: NormFunction,
        family: Family = _LLAMA,
        *,
        kind: LayerKind = _PLAIN,
        gate_is_gelu: bool = False,
        multiplier: float = 1.0,
    ) -> None:
        """Take the parts of a layer of this family; what it adds to the stream is multiplied."""
        attention, mlp = layer.self_attn, layer.mlp
        norms = (Norm(name and getattr(layer, name), norm, family) for name in family.norms)
        self.attention_norm, self.after_attention, self.mlp_norm, self.after_mlp = norms
        self.kind, self.is_parallel = kind, family.is_parallel
        self.gate_is_gelu, self.multiplier = gate_is_gelu, multiplier
        (first, *_), (gate, *up) = family.linears
        joined = getattr(attention, first)
        self.qkv: Any = joined.fused if isinstance(joined, LinearSlice) else joined
        self.out, self.down = attention.o_proj, mlp.down_proj
        self.gate: Any = getattr(mlp, gate)
        self.up: Any = getattr(mlp, up[0]) if up else self.gate  # the same product gives both
        if not up and isinstance(self.gate, KernelLinear):
            self.gate, self.up = self.gate.halves()
        self._linears = (self.qkv, self.out, self.gate, self.up, self.down)
        self.norms: Norms | None = None  # of queries and keys
        if hasattr(attention, "q_norm"):
            weights = attention.q_norm.weight, attention.k_norm.weight
            self.norms = Norms(*weights, _epsilon(attention.q_norm), family.norm_offset, family.norms_all_heads)

    @property
    def is_ours(self) -> bool:
        """Whether our kernels multiply everywhere; otherwise a linear layer belongs to oneDNN or torch."""
        return all(isinstance(linear, KernelLinear) for linear in self._linears)

    @property
    def is_batch_invariant(self) -> bool:
        """Whether a token's numbers are the same on CPU, bit for bit, whatever tokens are beside it."""
        return all(isinstance(part_of(linear), KernelLinear | Fp8Linear) for linear in self._linears)

    @property
    def measured(self) -> list[tuple[InvariantLinear, InvariantLinear | None]]:
        """The products whose tiles are chosen by the clock, each with its gate."""
        alone = [self.qkv, self.out, self.down, *([] if self._is_gated else [self.gate, self.up])]
        products = [(linear, None) for linear in alone] + ([(self.up, self.gate)] if self._is_gated else [])
        return [(linear, gate) for linear, gate in products if isinstance(linear, InvariantLinear)]

    @property
    def _is_gated(self) -> bool:
        """Whether one operation multiplies with gate and up."""
        return self.gate is not self.up and isinstance(self.up, Packed) and not self.gate_is_gelu

    def project(self, hidden_NE: torch.Tensor, normed_NE: torch.Tensor | None = None) -> Any:
        """Compute queries, keys and values of every token, side by side; of our GPU kernels' products the parts.

        `normed_NE` are the hidden states after `attention_norm`, if they are known.
        """
        if normed_NE is None:
            normed_NE = self.attention_norm(hidden_NE)
        return self.qkv.sums(normed_NE) if isinstance(self.qkv, InvariantLinear) else self.qkv(normed_NE)

    def finish(self, hidden_NE: torch.Tensor, found_NX: torch.Tensor) -> torch.Tensor:
        """Compute the hidden states after this layer from the output of its attention."""
        return self.finish_and_norm(hidden_NE, found_NX, None)[0]

    def finish_and_norm(
        self, hidden_NE: torch.Tensor, found_NX: torch.Tensor, norm: Norm | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return what `finish` does, and what `norm` makes of it."""
        normed_NE = self.attention_norm(hidden_NE) if self.is_parallel else None
        hidden_NE, read_NE = self._added(self.out, self.after_attention, found_NX, hidden_NE, self.mlp_norm)
        gated_NX = self.gated(read_NE if normed_NE is None else normed_NE)
        return self._added(self.down, self.after_mlp, gated_NX, hidden_NE, norm)

    def gated(self, normed_NE: torch.Tensor) -> torch.Tensor:
        """Compute what the last product of the layer reads."""
        gated_NX: torch.Tensor
        if self._is_gated:
            gated_NX = self.up.gated(normed_NE, self.gate)
            return gated_NX
        if self.gate is self.up:
            gate_NX, up_NX = self.gate(normed_NE).chunk(2, dim=-1)
        else:
            gate_NX, up_NX = self.gate(normed_NE), self.up(normed_NE)
        opened_NX = gelu(gate_NX, approximate="tanh") if self.gate_is_gelu else silu(gate_NX)
        gated_NX = opened_NX * up_NX
        return gated_NX

    def _added(
        self, linear: Any, after: Norm, x: torch.Tensor, residual: torch.Tensor, norm: Norm | None
    ) -> tuple[torch.Tensor, Any]:
        """Return a product added to the stream, and what the next norm makes of that, by one kernel where there is."""
        is_plain = after.weight is None and self.multiplier == 1.0
        if is_plain and norm is not None and norm.is_llamas and isinstance(linear, InvariantLinear):
            return linear.plus_and_norm(x, residual, norm.weight, norm.epsilon)
        out = _add(linear, x, residual) if is_plain else residual + after(linear(x)) * self.multiplier
        return out, None if norm is None else norm(out)


class KernelLayers:
    """Layers that are `Layer.is_ours`, run by one call."""

    def __init__(
        self, function: Callable[..., None], layers: Seq[Layer], heads: Heads, first: int, dtype: torch.dtype
    ) -> None:
        """Take the kernel `function` for the dtype of all layers, and the first layer's number in the cache."""
        self._function, self._layers, self._heads, self._first = function, layers, heads, first
        some = layers[0]
        query_size = heads.num_query_heads * heads.head_size
        self._numbers_a_token = some.qkv.in_features + some.qkv.out_features + query_size + some.up.out_features
        self._scratch = torch.empty(0, dtype=dtype)
        # Called once, before the next call of the kernels, in which this thread leaves the interpreter to others.
        self.before_call: Callable[[], None] | None = None
        # A description points into its cache.
        self._described = weakref.WeakKeyDictionary[KVCache, ctypes.Array[kernels.DecoderLayer]]()

    def forget(self) -> None:
        """Describe the layers again before they run: their weights have moved."""
        self._described.clear()

    def run(
        self,
        hidden_NE: torch.Tensor,
        forward: KernelAttention,
        cache: KVCache,
        *,
        is_wanted: bool,
        features: Features | None = None,
    ) -> None:
        """Replace the embedded tokens, in place, by the hidden states after the last layer.

        Unless `is_wanted`, the last layer only writes its keys and values. Where the stream is read between two layers,
        the kernel is called for the layers before and for those behind, each of which computes the same as in one call.
        """
        if cache not in self._described:
            described = (self._describe(layer, cache, index) for index, layer in enumerate(self._layers, self._first))
            self._described[cache] = (kernels.DecoderLayer * len(self._layers))(*described)
        num_numbers = self._numbers_a_token * hidden_NE.shape[0]
        if self._scratch.shape[0] < num_numbers:
            self._scratch = hidden_NE.new_empty(num_numbers)
        num_done, num_layers = 0, len(self._layers)
        if features is not None:
            for num_before in range(num_layers):
                if features.wants(self._first + num_before):
                    self._run_some(hidden_NE, forward, cache, num_done, num_before, is_wanted=True)
                    features.keep(self._first + num_before, hidden_NE)
                    num_done = num_before
        self._run_some(hidden_NE, forward, cache, num_done, num_layers, is_wanted=is_wanted)

    def _run_some(
        self,
        hidden_NE: torch.Tensor,
        forward: KernelAttention,
        cache: KVCache,
        first: int,
        end: int,
        *,
        is_wanted: bool,
    ) -> None:
        """Run the layers from `first` up to `end` (not included), counted from the first one here."""
        if first == end:
            return
        kind = kernels.DecoderLayer * (end - first)
        described = kind.from_buffer(self._described[cache], first * ctypes.sizeof(kernels.DecoderLayer))
        before, self.before_call = self.before_call, None
        if before is not None:
            before()
        self._function(
            ctypes.byref(forward.described),
            described,
            end - first,
            is_wanted,
            hidden_NE.data_ptr(),
            self._scratch.data_ptr(),
        )

    def _describe(self, layer: Layer, cache: KVCache, index: int) -> kernels.DecoderLayer:
        return kernels.DecoderLayer(
            layer.attention_norm.described(),
            layer.mlp_norm.described(),
            layer.after_attention.described(),
            layer.after_mlp.described(),
            layer.qkv.described(),
            layer.out.described(scale=layer.multiplier),
            layer.up.described(layer.gate, gate_is_gelu=layer.gate_is_gelu),
            layer.down.described(scale=layer.multiplier),
            layer_cache(cache.slot_layer(index), self._heads, layer.norms, self._scratch, layer.kind),
            layer.is_parallel,
        )


def _add(linear: Any, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    if isinstance(linear, Packed | SummedLinear):
        return linear.plus(x, residual)
    if linear.bias is None:
        return torch.addmm(residual, x, linear.weight.t())
    out: torch.Tensor = linear(x) + residual
    return out


def _epsilon(norm: Any) -> float:
    epsilon: float = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    return epsilon
