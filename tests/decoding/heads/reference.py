"""An EAGLE-3 or P-EAGLE head as a textbook would write it: float32, one row, no cache but growing lists.

It follows speculators 0.9 (`Eagle3DraftModel`, `PEagleDraftModel`), and shares no code with `decoding/heads`.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

Weights = Mapping[str, torch.Tensor]


class ReferenceHead:
    """A head of Llama or Qwen 3 layers, over the tensors of its folder."""

    def __init__(self, weights: Weights, settings: Mapping[str, Any]) -> None:
        self.w, self.s = weights, settings
        self.kept: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}  # by layer

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
        w, size, hidden = self.w, self.s["head_dim"], beside
        for index in range(self.s.get("num_hidden_layers", 1)):
            layer = f"layers.{index}."
            read = self.norm(
                w["embed_tokens.weight"][token] if index == 0 else hidden, w[layer + "input_layernorm.weight"]
            )
            if index == 0:
                normed = self.norm(beside, w[layer + "hidden_norm.weight"])
                read, hidden = torch.cat([read, normed]), normed if self.s.get("norm_before_residual") else beside
            heads = {}
            for name in "qkv":
                heads[name] = (w[f"{layer}self_attn.{name}_proj.weight"] @ read).view(-1, size)
                if f"{layer}self_attn.{name}_norm.weight" in w:
                    heads[name] = self.norm(heads[name], w[f"{layer}self_attn.{name}_norm.weight"])
            kept = self.kept.setdefault(index, [])  # keys and values
            del kept[position:]
            kept.append((self.rotated(heads["k"], position), heads["v"]))
            first = max(0, len(kept) - self.s.get("sliding_window", len(kept)))
            keys, values = (torch.stack(part, 1) for part in zip(*kept[first:], strict=True))
            group = len(heads["q"]) // len(heads["k"])
            keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
            scores = torch.einsum("qd,qld->ql", self.rotated(heads["q"], position), keys) / math.sqrt(size)
            found = torch.einsum("ql,qld->qd", scores.softmax(-1), values).flatten()
            hidden = hidden + w[layer + "self_attn.o_proj.weight"] @ found
            inner = self.norm(hidden, w[layer + "post_attention_layernorm.weight"])
            gated = torch.nn.functional.silu(w[layer + "mlp.gate_proj.weight"] @ inner)
            hidden = hidden + w[layer + "mlp.down_proj.weight"] @ (gated * (w[layer + "mlp.up_proj.weight"] @ inner))
        final = self.norm(hidden, w["norm.weight"])
        return w["lm_head.weight"] @ final, final if self.s.get("norm_output") else hidden

    def draft(self, tokens: list[int], features: torch.Tensor, num_tokens: int) -> list[int]:
        """Draft greedily after `tokens`, whose features (all but the newest one's) are given [L - 1, A * E].

        P-EAGLE reads a mask in the place of each drafted token, and what it learned in the place of each feature.
        """
        self.kept = {}
        for position, token in enumerate(tokens[1:]):
            logits, state = self.step(token, self.fused(features[position]), position)
        ids = torch.arange(len(self.w["lm_head.weight"]))
        ids = ids + self.w["d2t"] if "d2t" in self.w else ids
        drafted = [int(ids[logits.argmax()])]
        while len(drafted) < num_tokens:
            token = drafted[-1]
            if "mask_hidden" in self.w:
                token, state = self.s["mask_token_id"], self.fused(self.w["mask_hidden"].flatten())
            logits, state = self.step(token, state, len(tokens) - 2 + len(drafted))
            drafted.append(int(ids[logits.argmax()]))
        return drafted
