"""The slot attention that transformers' own model files call, with their mask rule and our rows.

A model file picks its mask rule (causal, sliding, chunked) as a function of query and key positions. We evaluate that
rule with each row's own query positions and run scaled dot-product attention over the slots, so ragged rows need
neither padding nor changes to any model. Query heads that share a KV head are packed into the query length: repeating
keys and values would be 4 to 24 times slower on CPU.

Shapes: B rows, Q query heads, H KV heads, G = Q / H, T tokens a row, N tokens of packed rows, L visible positions, D
head size.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeGuard

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.utils import logging

from decoding.cache.plan import Plan
from decoding.gpu.available import kernels_run_on

# The name is neutral on purpose: transformers searches it for "sdpa", "flash" and the like.
SLOT_ATTENTION = "dray_slot"


def install(model: PreTrainedModel) -> None:
    """Make `model` attend through slots.

    A few older models (BLOOM, Falcon, GPT-J, ...) have their attention built in. They keep it, and the name of the
    implementation, by which some choose how they compute; only the masks of rows in slots are ours.
    """
    AttentionMaskInterface.register(SLOT_ATTENTION, slot_mask)
    AttentionInterface.register(SLOT_ATTENTION, slot_attention)
    AttentionMaskInterface.register("sdpa", partial(_mask_of_rows, slot_mask, sdpa_mask))
    AttentionMaskInterface.register("eager", partial(_mask_of_rows, additive_slot_mask, eager_mask))
    with _silenced():
        model.set_attn_implementation(SLOT_ATTENTION)


@contextmanager
def default_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let `model` attend meanwhile as transformers' `generate` does: as its config.json names, or by default."""
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    before = [part.config._attn_implementation for part in parts]
    try:
        for part in parts:
            part.config._attn_implementation = part.get_correct_attn_implementation(
                getattr(model, "named_attention", None)
            )
        yield
    finally:
        for part, name in zip(parts, before, strict=True):
            part.config._attn_implementation = name


@contextmanager
def _silenced() -> Iterator[None]:
    """Silence the warning about models whose attention cannot be replaced: `install` handles those."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _mask_of_rows(of_slots: Callable[..., Any], of_transformers: Callable[..., Any], **arguments: Any) -> Any:
    """Return the mask of rows in slots, or transformers' own of all others."""
    return (of_slots if _has_rows(arguments.get("q_offset")) else of_transformers)(**arguments)


def _has_rows(q_offset: torch.Tensor | int | None) -> TypeGuard[torch.Tensor]:
    """Tell whether a `KVCache` says where queries are: all positions of each row."""
    return isinstance(q_offset, torch.Tensor) and q_offset.dim() == 4


def additive_slot_mask(dtype: torch.dtype = torch.float32, **arguments: Any) -> torch.Tensor:
    """Return `slot_mask` as eager attention adds it: 0 where a key is visible, else the lowest number."""
    visible = slot_mask(**arguments)
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, torch.finfo(dtype).min)


def slot_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: torch.Tensor | int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., torch.Tensor] | None = None,
    device: torch.device | str = "cpu",
    **_: Any,
) -> torch.Tensor:
    """Evaluate the model's mask rule at these rows' positions, bool [B, 1, T, L].

    `q_offset` is the position of the first query, or from a KVCache all query positions [B, 1, T, 1]: packed rows look
    like one long row to the model file, but not to its mask.
    """
    assert mask_function is not None, "transformers always passes the model's rule"
    if _has_rows(q_offset):
        queries, num_rows, q_length = q_offset, q_offset.shape[0], q_offset.shape[2]
    else:
        queries, num_rows = q_offset + torch.arange(q_length, device=device)[:, None], batch_size
    # The rule may look up the padding of its row, but no row has any. To the model file, packed rows are all row 0.
    rows_B111 = torch.arange(num_rows, device=device).clamp(max=batch_size - 1)[:, None, None, None]
    heads = torch.zeros(1, dtype=torch.long, device=device)[:, None, None]
    keys = kv_offset + torch.arange(kv_length, device=device)
    return mask_function(rows_B111, heads, queries, keys).expand(num_rows, 1, q_length, kv_length)


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    slot_plan: Plan | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention of query [B, Q, T, D] over key and value [B, H, L, D]; return [B, T, Q, D].

    Packed rows come as query [1, Q, N, D] and return as [1, N, Q, D]; only the attention itself sees the rectangle.
    """
    packing = None if slot_plan is None else slot_plan.packing
    if kernels_run_on(query.device) and position_bias is None and _fits_kernels(key, value, attention_mask):
        assert attention_mask is not None
        row_first = None if packing is None else packing.row_first
        return _by_our_kernels(query, key, value, attention_mask, row_first, scaling, softcap, s_aux), None
    if packing is not None:
        num_rows, width = packing.unpacked_BT.shape
        query = query[0].index_select(1, packing.unpacked_BT.flatten())
        query = query.view(len(query), num_rows, width, -1).transpose(0, 1)
    batch_size, num_query_heads, num_tokens, head_size = query.shape
    num_kv_heads, num_visible = key.shape[1], key.shape[2]
    group = num_query_heads // num_kv_heads
    packed_BHGTD = query.reshape(batch_size, num_kv_heads, group * num_tokens, head_size)
    mask = _pack(attention_mask, batch_size, num_kv_heads, group, num_tokens, num_visible)
    bias = _pack(position_bias, batch_size, num_kv_heads, group, num_tokens, num_visible)
    if softcap is None and s_aux is None and bias is None:
        output = torch.nn.functional.scaled_dot_product_attention(packed_BHGTD, key, value, mask, scale=scaling)
    else:
        sinks = None if s_aux is None else s_aux.view(num_kv_heads, group, 1).expand(-1, -1, num_tokens).flatten(1)
        output = _explicit(packed_BHGTD, key, value, mask, bias, scaling, softcap, sinks)
    output = output.reshape(batch_size, num_query_heads, num_tokens, value.shape[-1]).transpose(1, 2)
    if packing is not None:
        output = output.flatten(0, 1).index_select(0, packing.packed_N)[None]
    return output.contiguous(), None


def _fits_kernels(key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Tell whether our GPU kernels take such keys, values and mask."""
    is_alike = key.shape == value.shape and key.stride() == value.stride() and key.stride(3) == 1
    if not is_alike or mask is None or mask.dtype is not torch.bool:
        return False
    return mask.shape[1] == 1 and mask.stride(3) == 1


def _by_our_kernels(
    query: torch.Tensor,
    key_BHLD: torch.Tensor,
    value_BHLD: torch.Tensor,
    mask_B1TL: torch.Tensor,
    row_first: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks_Q: torch.Tensor | None,
) -> torch.Tensor:
    """Compute what `slot_attention` computes; `row_first` [B + 1] where rows are packed."""
    from decoding.gpu.attention import Rule, TokenRows, attend  # Triton is only where the kernels run

    num_rows, num_visible, device = len(key_BHLD), key_BHLD.shape[2], query.device
    width = mask_B1TL.shape[2]
    query_NQD = query.transpose(1, 2).flatten(0, 1).contiguous()
    every_B = torch.arange(num_rows + 1, device=device)
    if row_first is None:
        row_first = every_B * width
    rows_N = torch.searchsorted(row_first[1:], torch.arange(len(query_NQD), device=device), right=True)
    last_N = torch.full_like(rows_N, num_visible - 1)  # the mask tells which of the positions before it are seen
    rows = TokenRows(row_first, rows_N, last_N, width, num_visible)
    rule = Rule(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap=softcap or 0.0)
    found_NQD = attend(query_NQD, key_BHLD, value_BHLD, rows, rule, mask_B1TL[:, 0], sinks_Q)
    return found_NQD.view(query.shape[0], query.shape[2], *found_NQD.shape[1:])


def _pack(
    per_query: torch.Tensor | None, batch_size: int, num_kv_heads: int, group: int, num_tokens: int, num_visible: int
) -> torch.Tensor | None:
    """Reshape [b, 1 | H | Q, T, L] to [B, 1 | H, G * T, L], which fits packed queries."""
    if per_query is None or group == 1:
        return per_query
    if per_query.shape[1] == 1:
        per_query = per_query[:, :, None].expand(-1, -1, group, -1, -1)
        return per_query.reshape(-1, 1, group * num_tokens, num_visible)
    return per_query.reshape(-1, num_kv_heads, group * num_tokens, num_visible)


def _explicit(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Compute attention with what torch's lacks: soft-capped logits (Gemma 2), a sink per head, a position bias."""
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, :, None].expand(len(scores), -1, -1, 1)], dim=-1)
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return weights[..., : key.shape[2]] @ value
