"""Eagle3Network: the layers of an EAGLE-3 head as modules, named as the tensors of its folder.

A head reads pairs: a feature of the target at position i (its residual stream before some layers) and the token at
position i + 1. It predicts the token at position i + 2. The first layer's queries, keys and values are computed from
both side by side, so its products have twice as many inputs; all else is a decoder layer of Llama or Qwen 3.

Source: EAGLE-3 (arXiv 2503.01840); the speculators format, version 0.9.

Shapes: N pairs, A features of a token, E hidden size of the target, H that of the head, V vocabulary of the target, D
that of the head.
"""

from typing import Any

import torch
from torch import nn

from decoding.heads.format.head_config import HeadConfig
from decoding.heads.networks.decoder_layers import HeadNetwork, RMSNorm


class Eagle3Network(HeadNetwork):
    """The parameters of a head. Its layers are run over slots by `Eagle3Head`."""

    def __init__(self, config: HeadConfig) -> None:
        """Make the modules, with weights of no meaning."""
        super().__init__(config)
        hidden_size, epsilon = config.hidden_size, self.layer_config.rms_norm_eps
        self.input_norm = RMSNorm(self.fc.in_features, epsilon) if config.norm_before_fc else None
        self.fc_norm: nn.ModuleList | None = None
        if config.fc_norm:
            norms = (RMSNorm(config.target_hidden_size, epsilon) for _ in range(config.num_features))
            self.fc_norm = nn.ModuleList(norms)
        first: Any = self.layers[0]
        first.hidden_norm = RMSNorm(hidden_size, epsilon)
        for name in ("q_proj", "k_proj", "v_proj"):
            linear = getattr(first.self_attn, name)
            wider = nn.Linear(2 * hidden_size, linear.out_features, bias=linear.bias is not None)
            setattr(first.self_attn, name, wider)

    def project(self, features_NX: torch.Tensor) -> torch.Tensor:
        """Return what the head keeps of a token's features, [N, H], from all of them side by side [N, A * E]."""
        features_NX = features_NX.to(self.norm.weight.dtype)  # asking a packed layer for its weight unpacks it
        if self.input_norm is not None:
            features_NX = self.input_norm(features_NX)
        if self.fc_norm is not None:
            parts = features_NX.chunk(len(self.fc_norm), dim=-1)
            features_NX = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        projected_NH: torch.Tensor = self.fc(features_NX)
        return projected_NH
