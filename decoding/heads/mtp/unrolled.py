"""An MTP head of one module as it is trained: over whole documents, several tokens ahead, with gradients.

Step 0 reads true pairs: a state of the target, and the token behind it. Step k reads the true token k places on beside
the state that step k - 1 computed, as a draft does: its query sees the true pairs up to its own, and what the earlier
steps put behind them (`decoding/heads/unrolled.py` does the same for EAGLE-3). The layers are transformers' own.

A row is one document; what follows from padding on its right has no meaning.

Shapes: B rows, T tokens, P = T - 1 pairs of each, X keys, E hidden size.
"""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from transformers import DynamicCache

from decoding.heads.mtp.network import MtpNetwork


def unrolled(
    network: MtpNetwork, embedded_BTE: torch.Tensor, states_BTE: torch.Tensor, num_steps: int
) -> Iterator[torch.Tensor]:
    """Yield what leaves the final norm in each step k, [B, P - k, E]; that at p predicts token p + 2 + k."""
    (num_rows, num_tokens, _), device = embedded_BTE.shape, embedded_BTE.device
    num_pairs, states_BPE, cache = num_tokens - 1, states_BTE[:, :-1], DynamicCache()
    config = network.layers.config
    slides = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    window = config.sliding_window if slides else sys.maxsize
    back_PP = torch.arange(num_pairs, device=device)[:, None] - torch.arange(num_pairs, device=device)
    for step in range(min(num_steps, num_pairs)):
        left = num_pairs - step
        pair = network.embedding_norm(embedded_BTE[:, 1 + step :]), network.hidden_norm(states_BPE[:, :left])
        # Of each later step a query sees its own place alone.
        own = [torch.eye(num_pairs - earlier, device=device)[:left] > 0 for earlier in range(1, step + 1)]
        is_seen_PX = torch.cat([(back_PP >= 0)[:left] & (back_PP + step < window)[:left], *own], dim=1)
        mask_PX = embedded_BTE.new_zeros(is_seen_PX.shape).masked_fill(~is_seen_PX, torch.finfo(embedded_BTE.dtype).min)
        base: Any = network.layers.base_model
        stream_BPE = base(
            inputs_embeds=network.projection(torch.cat(pair, dim=-1)),
            position_ids=(torch.arange(left, device=device) + step).expand(num_rows, left),
            attention_mask=mask_PX.expand(num_rows, 1, *mask_PX.shape),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        states_BPE = network.state(stream_BPE, network.final_norm)
        yield network.final_norm(stream_BPE)
