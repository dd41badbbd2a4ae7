"""A DFlash, DFlash 2 or DSpark head as a textbook would write it: float32, one row, one mask, nothing kept.

It follows speculators 0.9 (`DFlashDraftModel`, `DSparkDraftModel`) and z-lab's own code of DFlash 2
(github.com/z-lab/dflash, dflash/model.py), and shares no code with `decoding/heads`.
"""

import math
from collections.abc import Mapping
from itertools import product
from typing import Any

import torch

Weights = Mapping[str, torch.Tensor]


class ReferenceBlocks:
    """A head over the tensors of its folder; it has an embedding and an output layer of its own."""

    def __init__(self, weights: Weights, settings: Mapping[str, Any]) -> None:
        self.w, self.s = weights, settings

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.w[name]

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        y = x @ self.w[f"{name}.weight"].T
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def heads(self, x: torch.Tensor, layer: str, which: str, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Queries, keys or values [heads, L, D]; with positions they are normed and rotated."""
        y = self.linear(x, f"{layer}self_attn.{which}_proj").unflatten(-1, (-1, self.s["head_dim"])).transpose(0, 1)
        if positions is None:
            return y
        if f"{layer}self_attn.{which}_norm.weight" in self.w:
            y = self.norm(y, f"{layer}self_attn.{which}_norm.weight")
        size = y.shape[-1]
        angles = positions[:, None] / 10000.0 ** (torch.arange(0, size, 2) / size)
        cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
        return y * cos + torch.cat([-y[..., size // 2 :], y[..., : size // 2]], -1) * sin

    def convolved(self, x: torch.Tensor, read: torch.Tensor, name: str, side: int) -> torch.Tensor:
        """The convolution [S, H] on one side of a part of a layer that reads `read`."""
        base, size = self.w[f"{name}.base_kernel"], self.s["conv_group_size"]
        _, taps, width = base.shape
        shared = self.linear(read, f"{name}.kernel_projection").view(len(x), 2, taps, width // size)
        out = torch.zeros_like(x)
        for place, tap, group in product(range(len(x)), range(taps), range(width // size)):
            if place >= tap:
                channels = slice(group * size, (group + 1) * size)
                coefficients = base[side, tap, channels] + shared[place, side, tap, group]
                out[place, channels] += coefficients * x[place - tap, channels]
        return out

    def block(self, tokens: list[int], features: torch.Tensor) -> torch.Tensor:
        """The states [S, H] of a block behind `tokens`, whose features (all but the newest one's) are given."""
        size, anchor = self.s["block_size"], len(tokens) - 1
        context = self.norm(self.linear(features, "fc"), "hidden_norm.weight")
        block = self.w["embed_tokens.weight"][[tokens[-1], *[self.s["mask_token_id"]] * (size - 1)]]
        block = block * self.s.get("input_embedding_scale", 1)
        before, inside = torch.arange(anchor), torch.arange(anchor, anchor + size)
        places = torch.cat([before, inside])
        for index in range(self.s["num_hidden_layers"]):
            layer = f"layers.{index}."
            normed = read = self.norm(block, layer + "input_layernorm.weight")
            if convolves := self.s.get("conv_kernel_size"):
                normed = self.convolved(read, read, layer + "attention_conv", 0)
            both = torch.cat([context, normed])
            queries = self.heads(normed, layer, "q", inside)
            keys, values = self.heads(both, layer, "k", places), self.heads(both, layer, "v")
            group = len(queries) // len(keys)
            scores = torch.einsum("qsd,qld->qsl", queries, keys.repeat_interleave(group, 0)) / math.sqrt(keys.shape[-1])
            slides = self.s.get("layer_types", {index: ""})[index] == "sliding_attention"
            if slides and self.s.get("window_moves"):
                scores = scores.masked_fill((places - inside[:, None]).abs() >= self.s["sliding_window"], -math.inf)
                if not self.s.get("sliding_window_non_causal"):
                    scores = scores.masked_fill(places > inside[:, None], -math.inf)
            elif slides and self.s["sliding_window"] is not None:
                scores[..., places < anchor - self.s["sliding_window"]] = -math.inf
                if not self.s.get("sliding_window_non_causal"):
                    scores = scores.masked_fill(places > inside[:, None], -math.inf)
            found = torch.einsum("qsl,qld->sqd", scores.softmax(-1), values.repeat_interleave(group, 0)).flatten(1)
            found = self.linear(found, layer + "self_attn.o_proj")
            block = block + (self.convolved(found, read, layer + "attention_conv", 1) if convolves else found)
            inner = read = self.norm(block, layer + "post_attention_layernorm.weight")
            if convolves:
                inner = self.convolved(read, read, layer + "mlp_conv", 0)
            gated = torch.nn.functional.silu(self.linear(inner, layer + "mlp.gate_proj"))
            found = self.linear(gated * self.linear(inner, layer + "mlp.up_proj"), layer + "mlp.down_proj")
            block = block + (self.convolved(found, read, layer + "mlp_conv", 1) if convolves else found)
        return self.norm(block, "norm.weight")

    def draft(self, tokens: list[int], features: torch.Tensor, num_tokens: int) -> tuple[list[int], list[float]]:
        """Draft greedily; return the tokens, and the chances by the confidence head (1.0 without one)."""
        states = self.block(tokens, features)
        ids = torch.arange(len(self.w["lm_head.weight"]))
        ids = ids + self.w["d2t"] if "d2t" in self.w else ids
        anchor_predicts = self.s.get("sample_from_anchor", False)
        drafted, chances, carried = [tokens[-1]], [], torch.zeros(self.s.get("markov_rank", 0))
        for place, state in enumerate(states):
            logits, features_of_chance = self.linear(state, "lm_head") * self.s.get("output_multiplier", 1), state
            if cap := self.s.get("final_logit_softcapping"):
                logits = cap * torch.tanh(logits / cap)
            if self.s.get("selector_rank"):
                best = logits.argsort(descending=True)[: self.s["selector_top_k"]]
                before = self.w["candidate_selector.predecessor_codebook"][drafted[-1]]
                wanted = before * self.linear(state, "candidate_selector.hidden_projection")
                scores = logits[best] + self.w["candidate_selector.successor_codebook"][ids[best]] @ wanted
                logits = torch.full_like(logits, -math.inf).index_copy(0, best, scores)
            if self.s.get("markov_rank"):
                before = self.w["markov_head.markov_w1.weight"][drafted[-1]]
                mixed, carried = self.mixed(before, state, carried)
                logits = logits + self.linear(mixed, "markov_head.markov_w2")
                if self.s.get("confidence_head_with_markov"):
                    features_of_chance = torch.cat([state, before])
            if place == 0 and not anchor_predicts:
                continue
            if len(drafted) > num_tokens:
                break
            chance = 1.0
            if self.s.get("enable_confidence_head"):
                chance = float(self.linear(features_of_chance, "confidence_head.proj").sigmoid())
            chances.append(chance)
            drafted.append(int(ids[logits.argmax()]))
        return drafted[1:], chances

    def mixed(
        self, before: torch.Tensor, state: torch.Tensor, carried: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the Markov head projects, and what it carries on."""
        kind = self.s.get("markov_head_type", "vanilla")
        if kind == "vanilla":
            return before, carried
        if kind == "gated":
            return self.linear(torch.cat([state, before]), "markov_head.gate_proj").sigmoid() * before, carried
        joint = self.linear(torch.cat([carried, before, state]), "markov_head.joint_proj")
        gate, candidate, out = joint.chunk(3)
        return out.tanh(), gate.sigmoid() * carried + (1 - gate.sigmoid()) * candidate.tanh()
