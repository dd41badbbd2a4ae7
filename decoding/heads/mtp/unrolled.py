"""An MTP head of one module as it is trained: over whole documents, several tokens ahead, with gradients.

Step 0 reads true pairs: a state of the target, and the token behind it. Step k reads the true token k places on beside
the state that step k - 1 computed, as a draft does: its query sees the true pairs up to its own, and what the earlier
steps put behind them (`decoding/heads/unrolled.py` does the same for EAGLE-3). The layers are transformers' own.

A row is one document; what follows from padding on its right has no meaning.

Shapes: B rows, T tokens, P = T - 1 pairs of each, X keys, E hidden size.
"""

import sys
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from decoding.checkpoint.layer_subset import layers_class
from decoding.heads.mtp.family import ENDS, Family
from decoding.heads.mtp.files import OwnHead
from decoding.heads.mtp.network import load_layers


class MtpNetwork(nn.Module):
    """The parameters of a module."""

    def __init__(self, layers: PreTrainedModel, family: Family) -> None:
        """Take over a network that has the layers of the module and its final norm; what comes before begins anew."""
        super().__init__()
        self.layers, self.reads = layers, family.reads[0]
        self.final_norm: Any = getattr(layers.base_model, family.final_norm)
        setattr(layers.base_model, family.final_norm, nn.Identity())  # what leaves the layers is wanted, too
        self.embedding_norm, self.hidden_norm = deepcopy(self.final_norm), deepcopy(self.final_norm)
        slides = "sliding_attention" in (getattr(layers.config, "layer_types", None) or ())
        self.window = layers.config.sliding_window if slides else sys.maxsize
        size = layers.config.hidden_size
        self.projection = nn.Linear(2 * size, size, bias=False)

    @classmethod
    def new(cls, config: Any, family: Family) -> "MtpNetwork":
        """Make one of random weights, by the configuration of a model with the layers of one module."""
        return cls(layers_class(config)._from_config(config, dtype=torch.float32).eval(), family)

    @classmethod
    def load(cls, head: OwnHead) -> "MtpNetwork":
        """Load the one that a target's files carry. Raises ValueError, in one line, for tensors of another family."""
        tensors = head.read(0)
        ends = [tensors.pop(name) for name in ENDS]
        network = cls(load_layers(head, tensors, torch.float32), head.family)
        with torch.no_grad():
            for module, weight in zip(
                (network.embedding_norm, network.hidden_norm, network.projection), ends, strict=True
            ):
                module.weight.copy_(weight)
        return network

    def state(self, stream: torch.Tensor, norm: nn.Module) -> torch.Tensor:
        """Return what a module reads of the residual stream before a final norm."""
        found: torch.Tensor = norm(stream) if self.reads == "normed" else stream
        return found


def unrolled(
    network: MtpNetwork, embedded_BTE: torch.Tensor, states_BTE: torch.Tensor, num_steps: int
) -> Iterator[torch.Tensor]:
    """Yield what leaves the final norm in each step k, [B, P - k, E]; that at p predicts token p + 2 + k."""
    (num_rows, num_tokens, _), device = embedded_BTE.shape, embedded_BTE.device
    num_pairs, states_BPE, cache = num_tokens - 1, states_BTE[:, :-1], DynamicCache()
    back_PP = torch.arange(num_pairs, device=device)[:, None] - torch.arange(num_pairs, device=device)
    for step in range(min(num_steps, num_pairs)):
        left = num_pairs - step
        pair = network.embedding_norm(embedded_BTE[:, 1 + step :]), network.hidden_norm(states_BPE[:, :left])
        # Of each later step a query sees its own place alone.
        own = [torch.eye(num_pairs - earlier, device=device)[:left] > 0 for earlier in range(1, step + 1)]
        is_seen_PX = torch.cat([(back_PP >= 0)[:left] & (back_PP + step < network.window)[:left], *own], dim=1)
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
