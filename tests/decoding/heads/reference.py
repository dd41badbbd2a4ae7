"""An EAGLE-3 head as a textbook would write it: float32, one row, no cache but two growing lists.

It follows speculators 0.9 (`Eagle3DraftModel`), and shares no code with `decoding/heads`.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

Weights = Mapping[str, torch.Tensor]


class ReferenceHead:
    """A head of one Llama or Qwen 3 layer, over the tensors of its folder."""

    def __init__(self, weights: Weights, settings: Mapping[str, Any]) -> None:
        self.w, self.s = weights, settings
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.s["rms_norm_eps"]) * weight

    def fused(self, features: torch.Tensor) -> torch.Tensor:
        """What the head keeps of one token's features."""
        if "input_norm.weight" in self.w:
            features = self.norm(features, self.w["input_norm.weight"])
        if "fc_norm.0.weight" in self.w:
            parts = features.chunk(self.s["num_features"], -1)
            features = torch.cat([self.norm(x, self.w[f"fc_norm.{i}.weight"]) for i, x in enumerate(parts)], -1)
        return self.w["fc.weight"] @ features

    def rotated(self, x: torch.Tensor, position: int) -> torch.Tensor:
        """Rotate heads [Q, D] as Llama does."""
        size = x.shape[-1]
        angles = position / 10000.0 ** (torch.arange(0, size, 2) / size)
        cos, sin = torch.cat([angles.cos()] * 2), torch.cat([angles.sin()] * 2)
        return x * cos + torch.cat([-x[:, size // 2 :], x[:, : size // 2]], -1) * sin

    def step(self, token: int, beside: torch.Tensor, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Read pair `position`: return logits over the head's own ids, and the state that the next step takes."""
        w, layer, size = self.w, "layers.0.", self.s["head_dim"]
        normed = self.norm(beside, w[layer + "hidden_norm.weight"])
        both = torch.cat([self.norm(w["embed_tokens.weight"][token], w[layer + "input_layernorm.weight"]), normed])
        heads = {}
        for name in "qkv":
            heads[name] = (w[f"{layer}self_attn.{name}_proj.weight"] @ both).view(-1, size)
            if f"{layer}self_attn.{name}_norm.weight" in w:
                heads[name] = self.norm(heads[name], w[f"{layer}self_attn.{name}_norm.weight"])
        del self.keys[position:], self.values[position:]
        self.keys.append(self.rotated(heads["k"], position))
        self.values.append(heads["v"])
        first = max(0, len(self.keys) - self.s.get("sliding_window", len(self.keys)))
        keys, values = torch.stack(self.keys[first:], 1), torch.stack(self.values[first:], 1)
        group = len(heads["q"]) // len(heads["k"])
        keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
        scores = torch.einsum("qd,qld->ql", self.rotated(heads["q"], position), keys) / math.sqrt(size)
        found = torch.einsum("ql,qld->qd", scores.softmax(-1), values).flatten()
        residual = normed if self.s.get("norm_before_residual") else beside
        hidden = residual + w[layer + "self_attn.o_proj.weight"] @ found
        inner = self.norm(hidden, w[layer + "post_attention_layernorm.weight"])
        gated = torch.nn.functional.silu(w[layer + "mlp.gate_proj.weight"] @ inner)
        hidden = hidden + w[layer + "mlp.down_proj.weight"] @ (gated * (w[layer + "mlp.up_proj.weight"] @ inner))
        final = self.norm(hidden, w["norm.weight"])
        return w["lm_head.weight"] @ final, final if self.s.get("norm_output") else hidden

    def draft(self, tokens: list[int], features: torch.Tensor, num_tokens: int) -> list[int]:
        """Draft greedily after `tokens`, whose features (all but the newest one's) are given [L - 1, A * E]."""
        self.keys, self.values = [], []
        for position, token in enumerate(tokens[1:]):
            logits, state = self.step(token, self.fused(features[position]), position)
        ids = torch.arange(len(self.w["lm_head.weight"]))
        ids = ids + self.w["d2t"] if "d2t" in self.w else ids
        drafted = [int(ids[logits.argmax()])]
        while len(drafted) < num_tokens:
            logits, state = self.step(drafted[-1], state, len(tokens) - 2 + len(drafted))
            drafted.append(int(ids[logits.argmax()]))
        return drafted
