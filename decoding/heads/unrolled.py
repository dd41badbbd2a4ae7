"""A head as it is trained: over whole documents, several tokens ahead, with gradients.

Step 0 reads true pairs. Step k reads the true token k places on beside the state of step k - 1, as a draft does, whose
later pairs have no feature; its query sees the true pairs up to its own and what the earlier steps put behind them
("training-time test" of EAGLE-3, arXiv 2503.01840; speculators 0.9, models/eagle3/core.py).

Shapes: B documents, T tokens, P = T - 1 pairs of each, X any number of features, H hidden size, D vocabulary of the
head, Q query heads, G of them for each KV head.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from decoding.heads.eagle3_network import Eagle3Network


def unrolled(
    network: Eagle3Network, tokens_BT: torch.Tensor, features_BTX: torch.Tensor, num_steps: int
) -> Iterator[torch.Tensor]:
    """Yield the logits [B, P - k, D] of each step k; those at p are for token p + 2 + k, given the tokens before it.

    The head has one layer. Documents are padded on the right; what follows a document's end has no meaning.
    """
    (layer,) = network.layers
    attention, config = _Attention(network), network.config
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
        mlp: Any = layer.mlp
        hidden_BPH = hidden_BPH + mlp.down_proj(silu(mlp.gate_proj(inner_BPH)) * mlp.up_proj(inner_BPH))
        final_BPH = network.norm(hidden_BPH)
        states_BPH = final_BPH if config.norm_output else hidden_BPH
        yield network.lm_head(final_BPH)


class _Attention:
    """The attention of all steps: each sees the true pairs, and of later steps only what follows its own pair."""

    def __init__(self, network: Eagle3Network) -> None:
        (layer,) = network.layers
        self._module: Any = layer.self_attn
        self._rotary = network.rotary_emb
        self._steps: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys and values [B, Q, P, D] of each

    def __call__(self, both_BPX: torch.Tensor, step: int) -> torch.Tensor:
        module, (num_rows, num_pairs) = self._module, both_BPX.shape[:2]

        def heads(linear: Any, norm: Any = None) -> torch.Tensor:
            found_BPQD: torch.Tensor = linear(both_BPX).view(num_rows, num_pairs, -1, module.head_dim)
            if norm is not None:
                found_BPQD = norm(found_BPQD)
            return found_BPQD.transpose(1, 2)

        query_BQPD = heads(module.q_proj, getattr(module, "q_norm", None))
        key_BHPD, value_BHPD = heads(module.k_proj, getattr(module, "k_norm", None)), heads(module.v_proj)
        positions_1P = torch.arange(step, step + num_pairs, device=both_BPX.device)[None]
        query_BQPD, key_BHPD = apply_rotary_pos_emb(query_BQPD, key_BHPD, *self._rotary(both_BPX, positions_1P))
        group = query_BQPD.shape[1] // key_BHPD.shape[1]
        self._steps.append((key_BHPD.repeat_interleave(group, 1), value_BHPD.repeat_interleave(group, 1)))
        if step == 0:
            found_BQPD = scaled_dot_product_attention(query_BQPD, *self._steps[0], is_causal=True)
        else:
            found_BQPD = self._beyond(query_BQPD * module.head_dim**-0.5)
        out_BPH: torch.Tensor = module.o_proj(found_BQPD.transpose(1, 2).flatten(2))
        return out_BPH

    def _beyond(self, query_BQPD: torch.Tensor) -> torch.Tensor:
        """Compute a later step's attention: to true pairs up to each query's own, and to one of each step since."""
        num_pairs = query_BQPD.shape[2]
        keys_BQPD, values_BQPD = (part[:, :, :num_pairs] for part in self._steps[0])
        is_later_PP = torch.ones(num_pairs, num_pairs, dtype=torch.bool, device=query_BQPD.device).triu(1)
        scores = [(query_BQPD @ keys_BQPD.transpose(-1, -2)).masked_fill(is_later_PP, float("-inf"))]
        own = [(keys[:, :, :num_pairs], values[:, :, :num_pairs]) for keys, values in self._steps[1:]]
        scores += [(query_BQPD * keys).sum(-1, keepdim=True) for keys, _ in own]
        weights_BQPX = torch.cat(scores, dim=-1).softmax(-1)
        found_BQPD = weights_BQPX[..., :num_pairs] @ values_BQPD
        for index, (_, values) in enumerate(own):
            found_BQPD = found_BQPD + weights_BQPX[..., num_pairs + index, None] * values
        return found_BQPD
