"""The attention of a fused forward: by our CPU kernel, by our GPU kernels, or by torch's own operations.

All three take the layer's single product (queries, keys and values side by side), apply the rotary embedding, store
keys and values in the slot cache, and return the attention's output. Query heads that share a KV head are packed into
the token dimension, so that nothing is repeated.

Shapes: B rows, T tokens of each, N tokens in all, Q query heads, H KV heads, G = Q / H, D head size, L visible
positions, X any number of features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from decoding.cache.kv_cache import KVCache, SlotLayer
from decoding.cache.plan import Plan
from decoding.fused import kernels
from decoding.gpu.available import kernels_run_on

Tables = tuple[torch.Tensor, torch.Tensor]  # rotary: cos [P, D], and sin [P, D] with the sign of the rotation


@dataclass(frozen=True)
class Heads:
    """The number of attention heads, and their size."""

    num_kv_heads: int
    group: int
    head_size: int

    @classmethod
    def of(cls, config: Any, layer: Any) -> "Heads":
        """Return the heads of a decoder layer of this configuration."""
        num_kv_heads = config.num_key_value_heads
        return cls(num_kv_heads, config.num_attention_heads // num_kv_heads, layer.self_attn.head_dim)

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


class KernelAttention:
    """Attention by `decoding/cpu/kernels/attention.h`: each row reads its own keys and values once."""

    def __init__(
        self,
        functions: kernels.Kernels,
        heads: Heads,
        positions_N: torch.Tensor,
        cache: KVCache,
        plan: Plan,
        tables_PD: Tables,
    ) -> None:
        """Describe the positions and slots of one forward; the rotary tables have a line for each position."""
        self._functions, self._heads, turns_N = functions, heads, _turns(positions_N, tables_PD)
        tensors = (plan.row_first, plan.slots_N, plan.written_N, plan.positions_N, turns_N, *tables_PD)
        self._tensors = [tensor.contiguous() for tensor in tensors]  # kept alive: the kernel has only their addresses
        self.described = kernels.Forward(
            len(plan.positions_BT),
            len(positions_N),
            heads.num_kv_heads,
            heads.group,
            heads.head_size,
            cache.num_allocated,
            plan.num_visible,
            *(tensor.data_ptr() for tensor in self._tensors),
        )

    def __call__(
        self, qkv_NX: torch.Tensor, slots: SlotLayer, norms: Norms | None, *, is_wanted: bool
    ) -> torch.Tensor | None:
        """Return the attention's output, [N, Q * D] with as many rows as `qkv_NX`; None unless `is_wanted`."""
        heads = self._heads
        # Zeros, since rows of padding are not written and must be finite.
        out_NX = qkv_NX.new_zeros(len(qkv_NX), heads.num_query_heads * heads.head_size) if is_wanted else None
        written = None if out_NX is None else out_NX.data_ptr()
        layer = layer_cache(slots, heads, norms, qkv_NX)
        self._functions.attention(self.described, layer, qkv_NX.data_ptr(), written)
        return out_NX


def layer_cache(slots: SlotLayer, heads: Heads, norms: Norms | None, like: torch.Tensor) -> kernels.LayerCache:
    """Describe a layer's cache for our kernels, and allocate it in the dtype of `like` if needed."""
    like_NHD = like.new_empty(0, heads.num_kv_heads, heads.head_size)
    keys, values = slots.storage(like_NHD, like_NHD)
    pointers = (None, None, 0.0) if norms is None else (norms.query.data_ptr(), norms.key.data_ptr(), norms.epsilon)
    return kernels.LayerCache(keys.data_ptr(), values.data_ptr(), *pointers)


class GpuAttention:
    """Attention by `decoding/gpu/attention.py`, called like `KernelAttention`: rows are ragged and stay in place."""

    def __init__(
        self,
        heads: Heads,
        plan: Plan,
        positions_N: torch.Tensor,
        tables_PD: Tables,
        window: Window | None,
    ) -> None:
        """Prepare the attention of one forward; the rotary tables (cos, sin) have a line for each position."""
        from decoding.gpu import attention  # Triton is only where the kernels run

        self._gpu, self._heads, self._plan, self._tables_PD = attention, heads, plan, tables_PD
        width = plan.positions_BT.shape[1]
        of_rows = plan.row_first, plan.slots_N
        self._turned = attention.TokenRows(*of_rows, positions_N, width, plan.num_visible)
        self._seen = attention.TokenRows(*of_rows, plan.positions_N, width, plan.num_visible)
        scale = heads.head_size**-0.5
        self._rule = attention.Rule(scale) if window is None else attention.Rule(scale, *window)

    def __call__(
        self, qkv_NX: torch.Tensor, slots: SlotLayer, norms: Norms | None, *, is_wanted: bool
    ) -> torch.Tensor | None:
        like_NHD = qkv_NX.new_empty(0, self._heads.num_kv_heads, self._heads.head_size)
        keys_SHPD, values_SHPD = slots.storage(like_NHD, like_NHD)
        storage = (keys_SHPD, values_SHPD, self._turned, self._plan.written_N)
        query_NQD = self._gpu.split_and_store(qkv_NX, *storage, self._tables_PD, norms)
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
    ) -> None:
        """Prepare the attention of one forward; `turns_N` are the tokens' lines in the rotary tables (cos, sin).

        Token t of row b sees nothing before position `first_seen_BT[b, t]`.
        """
        self._heads, self._plan, self._num_tokens = heads, plan, len(turns_N)
        cos_PD, sin_PD = tables_PD
        self._cos_N1D, self._sin_N1D = cos_PD[turns_N][:, None], sin_PD[turns_N][:, None]
        # Added to the scores, [B, 1, T * G, L]: 0 where a query sees a key, else -inf.
        keys_L = torch.arange(plan.num_visible, device=turns_N.device)
        is_hidden_BTL = keys_L > plan.positions_BT[:, :, None]
        if window is not None:
            is_hidden_BTL |= (keys_L <= plan.positions_BT[:, :, None] - window.num_last) & (keys_L >= window.num_first)
        if first_seen_BT is not None:
            is_hidden_BTL |= keys_L < first_seen_BT[:, :, None]
        mask_BTL = cos_PD.new_zeros(is_hidden_BTL.shape).masked_fill_(is_hidden_BTL, float("-inf"))
        self._mask = mask_BTL.repeat_interleave(heads.group, dim=1)[:, None]

    def __call__(
        self, qkv_NX: torch.Tensor, slots: SlotLayer, norms: Norms | None, *, is_wanted: bool
    ) -> torch.Tensor | None:
        heads = self._heads
        qkv_NXD = qkv_NX[: self._num_tokens].view(self._num_tokens, -1, heads.head_size)
        num_turned = heads.num_query_heads + heads.num_kv_heads
        turned_NXD = qkv_NXD[:, :num_turned]
        if norms is not None:
            query_NQD, key_NHD = turned_NXD[:, : heads.num_query_heads], turned_NXD[:, heads.num_query_heads :]
            query_NQD = rms_norm(query_NQD, norms.query.shape, norms.query, norms.epsilon)
            key_NHD = rms_norm(key_NHD, norms.key.shape, norms.key, norms.epsilon)
            turned_NXD = torch.cat((query_NQD, key_NHD), dim=1)
        swapped_NXD = turned_NXD.roll(heads.head_size // 2, -1)
        turned_NXD = (turned_NXD * self._cos_N1D).addcmul_(swapped_NXD, self._sin_N1D)
        slots.write(turned_NXD[:, heads.num_query_heads :], qkv_NXD[:, num_turned:])
        if not is_wanted:
            return None
        found_NX = self._attend(turned_NXD[:, : heads.num_query_heads], *slots.read())
        num_missing = len(qkv_NX) - self._num_tokens
        return found_NX if not num_missing else torch.nn.functional.pad(found_NX, (0, 0, 0, num_missing))

    def _attend(self, query_NQD: torch.Tensor, key_BHLD: torch.Tensor, value_BHLD: torch.Tensor) -> torch.Tensor:
        heads, packing = self._heads, self._plan.packing
        num_rows, width = self._plan.positions_BT.shape
        if packing is not None:
            query_NQD = query_NQD[packing.unpacked_BT.flatten()]
        query_BTHGD = query_NQD.reshape(num_rows, width, heads.num_kv_heads, heads.group, heads.head_size)
        query_BHXD = query_BTHGD.transpose(1, 2).flatten(2, 3)
        found_BHXD = scaled_dot_product_attention(query_BHXD, key_BHLD, value_BHLD, self._mask)
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
) -> SlotAttention:
    """Prepare the attention of one forward by the fastest code here; `functions` are our CPU kernels, if there are any.

    `positions_N` are where the tokens stand; `plan.positions_N` are the last positions that they see, the same ones
    unless tokens see what stands behind them. The rotary tables (cos, sin) have a line for each position of the cache.
    Our CPU kernels know no window.
    """
    if kernels_run_on(tables_PD[0].device):
        return GpuAttention(heads, plan, positions_N, tables_PD, window)
    if functions is not None and window is None:
        return KernelAttention(functions, heads, positions_N, cache, plan, tables_PD)
    return TorchAttention(heads, plan, _turns(positions_N, tables_PD), tables_PD, window)


def _turns(positions_N: torch.Tensor, tables_PD: Tables) -> torch.Tensor:
    """Return the tokens' lines in the rotary tables."""
    return positions_N.clamp(max=len(tables_PD[0]) - 1)  # padding may be beyond the end


class RotaryTables:
    """Tables that grow with the positions of the caches in use."""

    def __init__(self, rotary: Callable[..., tuple[torch.Tensor, torch.Tensor]], like: torch.Tensor) -> None:
        """Compute by a network's own module, in the dtype and on the device of `like`."""
        self._rotary, self._like = rotary, like
        self._tables_PD: Tables | None = None
        self._earlier: list[Tables] = []  # which recorded graphs may still read

    def reach(self, num_positions: int) -> Tables:
        """Return tables of at least `num_positions` positions."""
        if self._tables_PD is None or len(self._tables_PD[0]) < num_positions:
            positions = torch.arange(num_positions, device=self._like.device)[None]
            cos_1PD, sin_1PD = self._rotary(self._like, positions)
            half = cos_1PD.shape[-1] // 2
            # With the sign of rotate_half in the table, the rotation is x * cos + swapped(x) * sin.
            sin_PD = torch.cat((-sin_1PD[0, :, :half], sin_1PD[0, :, half:]), dim=-1)
            if self._tables_PD is not None:
                self._earlier.append(self._tables_PD)
            self._tables_PD = cos_1PD[0].contiguous(), sin_PD
        return self._tables_PD
