"""The attention of a fused forward: by our CPU kernel, by our GPU kernels, or by torch's own operations.

All three take the layer's single product (queries, keys and values side by side), apply the rotary embedding, store
keys and values in the slot cache, and return the attention's output. Query heads that share a KV head are packed into
the token dimension, so that nothing is repeated.

Shapes: B rows, T tokens of each, N tokens in all, Q query heads, H KV heads, G = Q / H, D head size, L visible
positions, X any number of features.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from decoding.cache.kv_cache import KVCache, SlotLayer
from decoding.cache.plan import Plan
from decoding.families.description import LayerKind
from decoding.families.norms import torch_norm
from decoding.families.rotary import Tables, swapped
from decoding.fused import kernels
from decoding.gpu.available import kernels_run_on

_PLAIN = LayerKind()


@dataclass(frozen=True)
class Heads:
    """The number of attention heads, their size, and what is computed of them."""

    num_kv_heads: int
    group: int
    head_size: int
    scale: float | None = None  # of the scores; None: one by the root of the head's size
    softcap: float = 0.0  # scores become softcap * tanh(score / softcap); 0: they stay
    half: int = 0  # numbers that turn together are so far apart; 0: half of the head's size

    @classmethod
    def of(cls, config: Any, layer: Any) -> "Heads":
        """Return the heads of a decoder layer of this configuration; those of this rank if ranks share them out."""
        num_ranks, num_kv_heads = getattr(layer.self_attn.o_proj, "num_ranks", 1), config.num_key_value_heads
        group = config.num_attention_heads // num_kv_heads
        return cls(num_kv_heads // num_ranks, group, layer.self_attn.head_dim)

    @cached_property
    def score_scale(self) -> float:
        """The number that scores are multiplied by; where it is a root, the root is taken in float32."""
        return float(np.float32(1) / np.sqrt(np.float32(self.head_size))) if self.scale is None else self.scale

    @property
    def num_query_heads(self) -> int:
        return self.num_kv_heads * self.group


class Window(NamedTuple):
    """The positions that a query sees of its row."""

    num_last: int  # up to its own
    num_first: int  # at the beginning


class Norms(NamedTuple):
    """Weights [D] of the normalization that some models apply to each query and key."""

    query: torch.Tensor
    key: torch.Tensor
    epsilon: float
    offset: float = 0.0  # heads are multiplied by it and the weight
    are_of_all_heads: bool = False  # weights [Q * D] and [H * D]: a token's heads are normalized together


class KernelAttention:
    """Attention by `decoding/cpu/kernels/attention.h`: each row reads its own keys and values once."""

    def __init__(
        self,
        functions: kernels.Kernels,
        heads: Heads,
        positions_N: torch.Tensor,
        cache: KVCache,
        plan: Plan,
        tables: kernels.TableAddresses,
    ) -> None:
        """Describe the positions and slots of one forward; the rotary tables have a line for each position."""
        self._functions, self._heads, turns_N = functions, heads, _turns(positions_N, tables.pairs[0])
        tensors = (plan.row_first, plan.slots_N, plan.written_N, plan.positions_N, turns_N)
        self._tensors = [tensor.contiguous() for tensor in tensors]  # kept alive: the kernel has only their addresses
        self._tables = tables
        self.described = kernels.Forward(
            plan.positions_BT.shape[0],
            positions_N.shape[0],
            heads.num_kv_heads,
            heads.group,
            heads.head_size,
            cache.num_allocated,
            plan.num_visible,
            *(tensor.data_ptr() for tensor in self._tensors),
            tables.address,
            heads.half or heads.head_size // 2,
            heads.score_scale,
            heads.softcap,
        )

    def __call__(
        self,
        qkv_NX: torch.Tensor,
        slots: SlotLayer,
        norms: Norms | None,
        *,
        is_wanted: bool,
        kind: LayerKind = _PLAIN,
    ) -> torch.Tensor | None:
        """Return the attention's output, [N, Q * D] with as many rows as `qkv_NX`; None unless `is_wanted`."""
        heads = self._heads
        # Zeros, since rows of padding are not written and must be finite.
        out_NX = qkv_NX.new_zeros(len(qkv_NX), heads.num_query_heads * heads.head_size) if is_wanted else None
        written = None if out_NX is None else out_NX.data_ptr()
        layer = layer_cache(slots, heads, norms, qkv_NX, kind)
        self._functions.attention(self.described, layer, qkv_NX.data_ptr(), written)
        return out_NX


def layer_cache(
    slots: SlotLayer, heads: Heads, norms: Norms | None, like: torch.Tensor, kind: LayerKind = _PLAIN
) -> kernels.LayerCache:
    """Describe a layer's cache for our kernels, and allocate it in the dtype of `like` if needed."""
    like_NHD = like.new_empty(0, heads.num_kv_heads, heads.head_size)
    keys, values = slots.storage(like_NHD, like_NHD)
    of_norms = (None, None) if norms is None else (norms.query.data_ptr(), norms.key.data_ptr(), *norms[2:])
    layer = kernels.LayerCache(keys.data_ptr(), values.data_ptr(), *of_norms)
    layer.window, layer.kind = kind.window, kind.rope
    return layer


class GpuAttention:
    """Attention by `decoding/gpu/attention.py`, called like `KernelAttention`: rows are ragged and stay in place."""

    def __init__(
        self,
        heads: Heads,
        plan: Plan,
        positions_N: torch.Tensor,
        tables_PD: Tables,
        window: Window | None,
        pages_SC: torch.Tensor | None,
    ) -> None:
        """Prepare the attention of one forward; the rotary tables (cos, sin) have a line for each position."""
        from decoding.gpu import attention  # Triton is only where the kernels run

        self._gpu, self._heads, self._plan, self._tables_PD = attention, heads, plan, tables_PD
        width = plan.positions_BT.shape[1]
        of_rows = plan.row_first, plan.slots_N
        self._turned = attention.TokenRows(*of_rows, positions_N, width, plan.num_visible, pages_SC)
        self._seen = attention.TokenRows(*of_rows, plan.positions_N, width, plan.num_visible, pages_SC)
        scale = heads.head_size**-0.5
        self._rule = attention.Rule(scale) if window is None else attention.Rule(scale, *window)

    def __call__(
        self,
        qkv_NX: Any,  # or its parts, as `Layer.project` leaves them
        slots: SlotLayer,
        norms: Norms | None,
        *,
        is_wanted: bool,
        kind: LayerKind = _PLAIN,
    ) -> torch.Tensor | None:
        assert kind == _PLAIN, "networks with other layers are not fused on a GPU"
        like_NHD = qkv_NX.new_empty(0, self._heads.num_kv_heads, self._heads.head_size)
        keys_SHPD, values_SHPD = slots.storage(like_NHD, like_NHD)
        storage = (keys_SHPD, values_SHPD, self._turned, self._plan.written_N)
        query_NQD = self._gpu.split_and_store(qkv_NX, *storage, self._tables_PD, norms and norms[:3])
        if not is_wanted:
            return None
        return self._gpu.attend(query_NQD, keys_SHPD, values_SHPD, self._seen, self._rule).flatten(1)


class TorchAttention:
    """Attention by torch's own operations, on any device, called like `KernelAttention`."""

    def __init__(
        self,
        heads: Heads,
        plan: Plan,
        turns_N: torch.Tensor,
        tables_PD: Tables,
        window: Window | None = None,
        first_seen_BT: torch.Tensor | None = None,
        other_tables: Seq[Tables] = (),
    ) -> None:
        """Prepare the attention of one forward; `turns_N` are the tokens' lines in the rotary tables (cos, sin).

        Token t of row b sees nothing before position `first_seen_BT[b, t]`.
        """
        self._heads, self._plan, self._num_tokens = heads, plan, len(turns_N)
        self._window, self._first_seen_BT = window, first_seen_BT
        self._turns = [(cos[turns_N][:, None], sin[turns_N][:, None]) for cos, sin in (tables_PD, *other_tables)]
        self._masks: dict[int, torch.Tensor] = {}  # by the windows of layers

    def _mask(self, window: int) -> torch.Tensor:
        """Return what is added to the scores, [B, 1, T * G, L]: 0 where a query sees a key, else -inf."""
        if window not in self._masks:
            cos_N1D, last_BT1 = self._turns[0][0], self._plan.positions_BT[:, :, None]
            keys_L = torch.arange(self._plan.num_visible, device=cos_N1D.device)
            is_hidden_BTL = keys_L > last_BT1
            if self._window is not None:
                is_hidden_BTL |= (keys_L <= last_BT1 - self._window.num_last) & (keys_L >= self._window.num_first)
            if window:
                is_hidden_BTL |= keys_L <= last_BT1 - window
            if self._first_seen_BT is not None:
                is_hidden_BTL |= keys_L < self._first_seen_BT[:, :, None]
            mask_BTL = cos_N1D.new_zeros(is_hidden_BTL.shape).masked_fill_(is_hidden_BTL, float("-inf"))
            self._masks[window] = mask_BTL.repeat_interleave(self._heads.group, dim=1)[:, None]
        return self._masks[window]

    def __call__(
        self,
        qkv_NX: torch.Tensor,
        slots: SlotLayer,
        norms: Norms | None,
        *,
        is_wanted: bool,
        kind: LayerKind = _PLAIN,
    ) -> torch.Tensor | None:
        heads = self._heads
        qkv_NXD = qkv_NX[: self._num_tokens].view(self._num_tokens, -1, heads.head_size)
        num_turned = heads.num_query_heads + heads.num_kv_heads
        turned_NXD = qkv_NXD[:, :num_turned]
        if norms is not None:
            parts = turned_NXD[:, : heads.num_query_heads], turned_NXD[:, heads.num_query_heads :]
            weights = norms.query, norms.key
            if norms.are_of_all_heads:
                parts = parts[0].flatten(1), parts[1].flatten(1)
            found = [torch_norm(x, of, *norms[2:4]) for x, of in zip(parts, weights, strict=True)]
            turned_NXD = torch.cat([each.view(len(each), -1, heads.head_size) for each in found], dim=1)
        cos_N1D, sin_N1D = self._turns[kind.rope]
        turned_NXD = (turned_NXD * cos_N1D).addcmul_(swapped(turned_NXD, heads.half), sin_N1D)
        slots.write(turned_NXD[:, heads.num_query_heads :], qkv_NXD[:, num_turned:])
        if not is_wanted:
            return None
        found_NX = self._attend(turned_NXD[:, : heads.num_query_heads], *slots.read(), self._mask(kind.window))
        num_missing = len(qkv_NX) - self._num_tokens
        return found_NX if not num_missing else torch.nn.functional.pad(found_NX, (0, 0, 0, num_missing))

    def _attend(
        self, query_NQD: torch.Tensor, key_BHLD: torch.Tensor, value_BHLD: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        heads, packing = self._heads, self._plan.packing
        num_rows, width = self._plan.positions_BT.shape
        if packing is not None:
            query_NQD = query_NQD[packing.unpacked_BT.flatten()]
        query_BTHGD = query_NQD.reshape(num_rows, width, heads.num_kv_heads, heads.group, heads.head_size)
        query_BHXD = query_BTHGD.transpose(1, 2).flatten(2, 3)
        if heads.softcap:
            scores_BHXL = (query_BHXD @ key_BHLD.transpose(2, 3)).float() * (heads.score_scale / heads.softcap)
            weights_BHXL = (heads.softcap * scores_BHXL.tanh() + mask).softmax(-1).to(value_BHLD.dtype)
            found_BHXD = weights_BHXL @ value_BHLD
        else:
            found_BHXD = scaled_dot_product_attention(query_BHXD, key_BHLD, value_BHLD, mask, scale=heads.scale)
        found_BHTGD = found_BHXD.reshape(num_rows, heads.num_kv_heads, width, heads.group, heads.head_size)
        found_NX = found_BHTGD.transpose(1, 2).flatten(2).flatten(0, 1)
        return found_NX if packing is None else found_NX[packing.packed_N]


SlotAttention = GpuAttention | KernelAttention | TorchAttention


def attention_here(
    heads: Heads,
    positions_N: torch.Tensor,
    cache: KVCache,
    plan: Plan,
    tables_PD: Tables,
    functions: kernels.Kernels | None,
    window: Window | None = None,
    other_tables: Seq[Tables] = (),
) -> SlotAttention:
    """Prepare the attention of one forward by the fastest code here; `functions` are our CPU kernels, if there are any.

    `positions_N` are where the tokens stand; `plan.positions_N` are the last positions that they see, the same ones
    unless tokens see what stands behind them. The rotary tables (cos, sin) have a line for each position of the cache;
    `other_tables` are those of layers that turn otherwise. Our CPU kernels know no `window` with two ends.
    """
    if kernels_run_on(tables_PD[0].device):
        return GpuAttention(heads, plan, positions_N, tables_PD, window, cache.pages_SC)
    if functions is not None and window is None:
        return KernelAttention(
            functions, heads, positions_N, cache, plan, kernels.TableAddresses((tables_PD, *other_tables))
        )
    turns_N = _turns(positions_N, tables_PD)
    return TorchAttention(heads, plan, turns_N, tables_PD, window, other_tables=other_tables)


def _turns(positions_N: torch.Tensor, tables_PD: Tables) -> torch.Tensor:
    """Return the tokens' lines in the rotary tables."""
    return positions_N.clamp(max=tables_PD[0].shape[0] - 1)  # padding may be beyond the end
