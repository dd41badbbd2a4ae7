"""A head as it is trained: over whole documents, several tokens ahead, with gradients.

Step 0 reads true pairs. Step k reads the true token k places on beside the state of step k - 1, as a draft does, whose
later pairs have no feature; its query sees the true pairs up to its own and what the earlier steps put behind them
("training-time test" of EAGLE-3, arXiv 2503.01840; speculators 0.9, models/eagle3/core.py).

A row may hold several documents, one behind the other: a query sees the pairs of its own document only, and positions
begin anew with each.

Shapes: B rows, T tokens, P = T - 1 pairs of each, X any number of features, H hidden size, D vocabulary of the head, Q
query heads, G of them for each KV head.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from decoding.heads.format.networks import Eagle3Network


def unrolled(
    network: Eagle3Network,
    tokens_BT: torch.Tensor,
    features_BTX: torch.Tensor,
    num_steps: int,
    documents_BT: torch.Tensor | None = None,
) -> Iterator[torch.Tensor]:
    """Yield the logits [B, P - k, D] of each step k; those at p are for token p + 2 + k, given the tokens before it.

    The head has one layer. `documents_BT` numbers the documents of each row; without it, a row is one document. Those
    logits alone have a meaning whose pair p and whose token p + 1 + k are of one document. Padding on the right is a
    document like any other.
    """
    (layer,) = network.layers
    if documents_BT is None:
        documents_BT = torch.zeros_like(tokens_BT)
    attention, config = _Attention(network, documents_BT[:, :-1]), network.config
    states_BPH = network.project(features_BTX[:, :-1])
    num_pairs = states_BPH.shape[1]
    for step in range(num_steps):
        left = num_pairs - step
        if left < 1:
            return
        embedded_BPH = network.embed_tokens(tokens_BT[:, 1 + step :])
        states_BPH = states_BPH[:, :left]
        normed_BPH = layer.hidden_norm(states_BPH)  # type: ignore[operator]
        both_BPX = torch.cat((layer.input_layernorm(embedded_BPH), normed_BPH), dim=-1)  # type: ignore[operator]
        hidden_BPH = (normed_BPH if config.norm_before_residual else states_BPH) + attention(both_BPX, step)
        inner_BPH = layer.post_attention_layernorm(hidden_BPH)  # type: ignore[operator]
        hidden_BPH = hidden_BPH + layer.mlp(inner_BPH)  # type: ignore[operator]
        final_BPH = network.norm(hidden_BPH)
        states_BPH = final_BPH if config.norm_output else hidden_BPH
        yield network.lm_head(final_BPH)


def positions_in_documents(documents_BT: torch.Tensor) -> torch.Tensor:
    """Return the position of each token in its document, from 0 on; a document's tokens stand side by side."""
    indices_BT = torch.arange(documents_BT.shape[1], device=documents_BT.device).expand_as(documents_BT)
    is_first_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    is_first_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    return indices_BT - torch.where(is_first_BT, indices_BT, 0).cummax(1).values


def heads_of(attention: Any, which: str, x_BPX: torch.Tensor) -> torch.Tensor:
    """Return queries ("q"), keys ("k") or values ("v") [B, Q or G, P, D], normed where the attention norms them."""
    found_BPQD: torch.Tensor = getattr(attention, f"{which}_proj")(x_BPX).unflatten(-1, (-1, attention.head_dim))
    norm = getattr(attention, f"{which}_norm", None)
    return (found_BPQD if norm is None else norm(found_BPQD)).transpose(1, 2)


class _Attention:
    """The attention of all steps: each sees the true pairs, and of later steps only what follows its own pair."""

    def __init__(self, network: Eagle3Network, documents_BP: torch.Tensor) -> None:
        (layer,) = network.layers
        self._module: Any = layer.self_attn
        self._rotary = network.rotary_emb
        num_pairs = documents_BP.shape[1]
        is_earlier_PP = torch.ones(num_pairs, num_pairs, dtype=torch.bool, device=documents_BP.device).tril()
        self._is_seen_B1PP = (is_earlier_PP & (documents_BP[:, :, None] == documents_BP[:, None]))[:, None]
        self._positions_BP = positions_in_documents(documents_BP)
        self._steps: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys and values [B, Q, P, D] of each

    def __call__(self, both_BPX: torch.Tensor, step: int) -> torch.Tensor:
        module = self._module
        query_BQPD, key_BHPD, value_BHPD = (heads_of(module, which, both_BPX) for which in "qkv")
        positions_BP = self._positions_BP[:, : both_BPX.shape[1]] + step
        query_BQPD, key_BHPD = apply_rotary_pos_emb(query_BQPD, key_BHPD, *self._rotary(both_BPX, positions_BP))
        group = query_BQPD.shape[1] // key_BHPD.shape[1]
        self._steps.append((key_BHPD.repeat_interleave(group, 1), value_BHPD.repeat_interleave(group, 1)))
        if step == 0:
            found_BQPD = scaled_dot_product_attention(query_BQPD, *self._steps[0], attn_mask=self._is_seen_B1PP)
        else:
            found_BQPD = self._beyond(query_BQPD * module.head_dim**-0.5)
        out_BPH: torch.Tensor = module.o_proj(found_BQPD.transpose(1, 2).flatten(2))
        return out_BPH

    def _beyond(self, query_BQPD: torch.Tensor) -> torch.Tensor:
        """Compute a later step's attention: to true pairs up to each query's own, and to one of each step since."""
        num_pairs = query_BQPD.shape[2]
        keys_BQPD, values_BQPD = (part[:, :, :num_pairs] for part in self._steps[0])
        is_seen_B1PP = self._is_seen_B1PP[..., :num_pairs, :num_pairs]
        scores = [(query_BQPD @ keys_BQPD.transpose(-1, -2)).masked_fill(~is_seen_B1PP, float("-inf"))]
        own = [(keys[:, :, :num_pairs], values[:, :, :num_pairs]) for keys, values in self._steps[1:]]
        scores += [(query_BQPD * keys).sum(-1, keepdim=True) for keys, _ in own]
        weights_BQPX = torch.cat(scores, dim=-1).softmax(-1)
        found_BQPD = weights_BQPX[..., :num_pairs] @ values_BQPD
        for index, (_, values) in enumerate(own):
            found_BQPD = found_BQPD + weights_BQPX[..., num_pairs + index, None] * values
        return found_BQPD
