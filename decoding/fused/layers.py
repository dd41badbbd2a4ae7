"""KernelLayers: all decoder layers of a fused network, run by one call of `decoding/fused/kernels/decoder.h`.

Between two operations of a layer Python takes some 5 microseconds, and a small model has hundreds of operations.

Shapes: N tokens, E hidden size.
"""

import ctypes
import weakref
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from decoding.cache.kv_cache import KVCache
from decoding.fused import kernels
from decoding.fused.attention import Heads, KernelForward, Norms, layer_cache
from decoding.fused.linear import KernelLinear


@dataclass(frozen=True)
class LayerParts:
    """The parts of one layer."""

    attention_norm: torch.Tensor  # [E]
    mlp_norm: torch.Tensor  # [E]
    epsilons: tuple[float, float]
    qkv: KernelLinear
    out: KernelLinear
    gate: KernelLinear
    up: KernelLinear
    down: KernelLinear
    norms: Norms | None  # of queries and keys


class KernelLayers:
    """The layers of one network."""

    def __init__(self, function: Callable[..., None], parts: Seq[LayerParts], heads: Heads, first: int = 0) -> None:
        """Take the kernel `function` for the dtype of all parts, and the first layer's number in the cache."""
        self._function, self._parts, self._heads, self._first_layer = function, parts, heads, first
        some = parts[0]
        query_size = heads.num_query_heads * heads.head_size
        self._numbers_a_token = some.qkv.in_features + some.qkv.out_features + query_size + some.up.out_features
        self._scratch = some.attention_norm.new_empty(0)
        # A description points into its cache.
        self._layers: weakref.WeakKeyDictionary[KVCache, ctypes.Array[kernels.DecoderLayer]] = (
            weakref.WeakKeyDictionary()
        )

    def run(self, hidden_NE: torch.Tensor, forward: KernelForward, cache: KVCache, *, is_wanted: bool) -> None:
        """Replace the embedded tokens, in place, by the hidden states after the last layer.

        Unless `is_wanted`, the last layer only writes its keys and values.
        """
        layers = self._layers.get(cache)
        if layers is None:
            layers = self._layers[cache] = (kernels.DecoderLayer * len(self._parts))(
                *(self._described(parts, cache, index) for index, parts in enumerate(self._parts, self._first_layer))
            )
        if len(self._scratch) < self._numbers_a_token * len(hidden_NE):
            self._scratch = hidden_NE.new_empty(self._numbers_a_token * len(hidden_NE))
        self._function(
            ctypes.byref(forward.described),
            layers,
            len(self._parts),
            is_wanted,
            hidden_NE.data_ptr(),
            self._scratch.data_ptr(),
        )

    def _described(self, parts: LayerParts, cache: KVCache, index: int) -> kernels.DecoderLayer:
        return kernels.DecoderLayer(
            parts.attention_norm.data_ptr(),
            parts.mlp_norm.data_ptr(),
            *parts.epsilons,
            parts.qkv.described(),
            parts.out.described(),
            parts.up.described(parts.gate),
            parts.down.described(),
            layer_cache(cache.slot_layer(index), self._heads, parts.norms, parts.attention_norm),
        )
