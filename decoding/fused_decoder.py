"""FusedDecoder: the forward of a Llama-shaped network in few, large operations, over the network's own weights.

Eager model code spends half a millisecond a layer on small operations, and its linears are packed one by one. Here
queries, keys and values come from one product, sums and activations ride on the products before them, only the
attention sees rows (everything else is one row a token, so ragged rows cost nothing), and what nobody asks for is not
computed: no logits in a prefill, and no last layer beyond its keys and values.

`fit` decides by structure, `decoding/probe.py` by measurement; other networks run as transformers wrote them.

Shapes: B rows, T tokens of each, N tokens in all, M tokens whose logits are wanted, H KV heads, G query heads for each
of them, D head size, L visible positions, E hidden size, V vocabulary.
"""

import re
from typing import Any

import torch
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention, silu
from transformers import PreTrainedModel

from decoding.kv_cache import KVCache, Plan
from decoding.packed_linear import PackedLinear, can_pack

_MODEL_TYPES = {"llama", "mistral", "qwen2", "qwen3"}
_LAYER_PARAMETERS = re.compile(
    r"model\.layers\.\d+\."
    r"(self_attn\.([qkvo]_proj\.(weight|bias)|[qk]_norm\.weight)"
    r"|mlp\.(gate|up|down)_proj\.(weight|bias)|(input|post_attention)_layernorm\.weight)"
)
_OTHER_PARAMETERS = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
# oneDNN multiplies one or two rows slower than four (22 ms against 18 for a 283 M network).
_FEWEST_ROWS_ON_CPU = 4


class FusedDecoder:
    """Runs the layers of a transformers network. It owns its weights jointly with the network, which stays callable."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Fuse a network that fits."""
        network: Any = model.model
        config = model.config
        self._embedding = network.embed_tokens.weight
        self._final_norm = _Norm(network.norm)
        self._head = model.get_output_embeddings()
        self._layers = [_Layer(layer, config) for layer in network.layers]
        self._num_kv_heads: int = config.num_key_value_heads
        self._group: int = config.num_attention_heads // config.num_key_value_heads
        self._rotary = network.rotary_emb
        self._fewest_rows = _FEWEST_ROWS_ON_CPU if self._embedding.device.type == "cpu" else 1

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Whether every parameter of the network has its place here, and nothing else is in its configuration."""
        config = model.config
        if config.model_type not in _MODEL_TYPES or config.hidden_act != "silu":
            return False
        layer_types = getattr(config, "layer_types", None)
        slides = set(layer_types) != {"full_attention"} if layer_types else getattr(config, "sliding_window", None)
        names = [name for name, _ in model.named_parameters()]
        return not slides and all(name in _OTHER_PARAMETERS or _LAYER_PARAMETERS.fullmatch(name) for name in names)

    def reach(self, num_positions: int) -> None:
        """Prepare for sequences of up to `num_positions` tokens."""
        positions = torch.arange(num_positions, device=self._embedding.device)[None]
        cos_1PD, sin_1PD = self._rotary(self._embedding[:1], positions)
        half = cos_1PD.shape[-1] // 2
        self._cos_PD = cos_1PD[0]
        # With the sign of rotate_half in the table, turning is x * cos + swapped(x) * sin.
        self._sin_PD = torch.cat((-sin_1PD[0, :, :half], sin_1PD[0, :, half:]), dim=-1)

    def forward(
        self, token_ids_N: torch.Tensor, positions_N: torch.Tensor, wanted_M: torch.Tensor, cache: KVCache, plan: Plan
    ) -> torch.Tensor:
        """Logits [M, V] after the wanted tokens; the keys and values of all N go where the plan says."""
        num_tokens = len(token_ids_N)
        hidden_NE = embedding(_padded(token_ids_N, self._fewest_rows), self._embedding)
        positions_N = positions_N.clamp(max=len(self._cos_PD) - 1)  # padding may stand beyond the end
        turns = self._cos_PD[positions_N][:, None], self._sin_PD[positions_N][:, None]
        mask = self._mask(plan, hidden_NE.dtype)
        for index, layer in enumerate(self._layers):
            slots = cache.slot_layer(index)
            query_NQD = layer.attend_to(hidden_NE, num_tokens, turns, slots)
            if index == len(self._layers) - 1:
                if not len(wanted_M):
                    break
                hidden_NE = hidden_NE[:num_tokens]
            hidden_NE = layer.finish(hidden_NE, self._attention(query_NQD, *slots.read(), mask, plan))
        hidden_ME = self._final_norm(hidden_NE[wanted_M])
        logits_MV: torch.Tensor = self._head(hidden_ME)
        return logits_MV

    def _mask(self, plan: Plan, dtype: torch.dtype) -> torch.Tensor:
        """What is added to the scores, [B, 1, T * G, L]: 0 where a query sees a key, -inf where not."""
        keys_L = torch.arange(plan.num_visible, device=plan.positions_BT.device)
        hidden_BTL = keys_L > plan.positions_BT[:, :, None]
        mask_BTL = torch.zeros(hidden_BTL.shape, dtype=dtype, device=keys_L.device).masked_fill_(
            hidden_BTL, float("-inf")
        )
        return mask_BTL.repeat_interleave(self._group, dim=1)[:, None]

    def _attention(
        self,
        query_NQD: torch.Tensor,
        key_BHLD: torch.Tensor,
        value_BHLD: torch.Tensor,
        mask: torch.Tensor,
        plan: Plan,
    ) -> torch.Tensor:
        """[N, Q * D]. Query heads that share a KV head stand beside the tokens: nothing is repeated."""
        num_rows, width = plan.positions_BT.shape
        if plan.packing is not None:
            query_NQD = query_NQD[plan.packing.unpacked_BT.flatten()]
        head_size = query_NQD.shape[-1]
        query_BTHGD = query_NQD.view(num_rows, width, self._num_kv_heads, self._group, head_size)
        query_BHXD = query_BTHGD.transpose(1, 2).reshape(num_rows, self._num_kv_heads, -1, head_size)
        output_BHXD = scaled_dot_product_attention(query_BHXD, key_BHLD, value_BHLD, mask)
        output_BHTGD = output_BHXD.view(num_rows, self._num_kv_heads, width, self._group, head_size)
        output_NX = output_BHTGD.transpose(1, 2).reshape(num_rows * width, -1)
        return output_NX if plan.packing is None else output_NX[plan.packing.packed_N]


class _Layer:
    """One decoder layer."""

    def __init__(self, layer: Any, config: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._head_size: int = attention.head_dim
        self._num_turned: int = config.num_attention_heads + config.num_key_value_heads
        self._num_query_heads: int = config.num_attention_heads
        self._attention_norm = _Norm(layer.input_layernorm)
        self._mlp_norm = _Norm(layer.post_attention_layernorm)
        self._query_norm = _Norm(attention.q_norm) if hasattr(attention, "q_norm") else None
        self._key_norm = _Norm(attention.k_norm) if hasattr(attention, "k_norm") else None
        self._qkv = fuse(attention, ("q_proj", "k_proj", "v_proj"))
        self._out, self._gate, self._up, self._down = attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj

    def attend_to(
        self, hidden_NE: torch.Tensor, num_tokens: int, turns: tuple[torch.Tensor, torch.Tensor], slots: Any
    ) -> torch.Tensor:
        """Write keys and values of the tokens into their slots; their queries, [N, Q, D]."""
        qkv_NXD = self._qkv(self._attention_norm(hidden_NE))[:num_tokens]
        qkv_NXD = qkv_NXD.view(num_tokens, -1, self._head_size)
        turned_NXD = qkv_NXD[:, : self._num_turned]
        if self._query_norm is not None and self._key_norm is not None:
            query_NQD, key_NHD = turned_NXD.split((self._num_query_heads, self._num_turned - self._num_query_heads), 1)
            turned_NXD = torch.cat((self._query_norm(query_NQD), self._key_norm(key_NHD)), dim=1)
        cos_N1D, sin_N1D = turns
        swapped_NXD = turned_NXD.roll(self._head_size // 2, -1)
        turned_NXD = (turned_NXD * cos_N1D).addcmul_(swapped_NXD, sin_N1D)
        slots.write(turned_NXD[:, self._num_query_heads :], qkv_NXD[:, self._num_turned :])
        return turned_NXD[:, : self._num_query_heads]

    def finish(self, hidden_NE: torch.Tensor, attended_NX: torch.Tensor) -> torch.Tensor:
        """The hidden state after this layer, from what the attention found."""
        attended_NX = _padded(attended_NX, len(hidden_NE))
        hidden_NE = _add(self._out, attended_NX, hidden_NE)
        normed_NE = self._mlp_norm(hidden_NE)
        if isinstance(self._up, PackedLinear):
            gated = self._up.then("mul", normed_NE, self._gate.silu(normed_NE))
        else:
            gated = silu(self._gate(normed_NE)) * self._up(normed_NE)
        return _add(self._down, gated, hidden_NE)


class _Norm:
    """Root mean square normalization over the last dimension."""

    def __init__(self, module: Any) -> None:
        self._weight, self._epsilon = module.weight, module.variance_epsilon

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self._weight.shape, self._weight, self._epsilon)


class _Slice(torch.nn.Module):
    """A linear layer that is part of a fused one: what the network's own code finds in its old place."""

    def __init__(self, fused: torch.nn.Module, first: int, last: int) -> None:
        super().__init__()
        self._fused = [fused]  # in a list: not a child, so that it is not moved or counted three times
        self._first, self._last = first, last

    @property
    def weight(self) -> torch.Tensor:
        weight: torch.Tensor = self._fused[0].weight[self._first : self._last]
        return weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._fused[0](x)[..., self._first : self._last]
        return out


def fuse(parent: torch.nn.Module, names: tuple[str, ...]) -> torch.nn.Module:
    """One linear layer that computes what the named ones compute, side by side; they become slices of it."""
    parts: list[Any] = [getattr(parent, name) for name in names]
    weight = torch.cat([part.weight for part in parts])
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    fused: torch.nn.Module
    if can_pack(weight):
        fused = PackedLinear(weight, bias)
    else:
        fused = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        fused.weight = torch.nn.Parameter(weight, requires_grad=False)
        fused.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)
    first = 0
    for name, part in zip(names, parts, strict=True):
        setattr(parent, name, _Slice(fused, first, first + part.out_features))
        first += part.out_features
    return fused


def _add(linear: Any, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    if isinstance(linear, PackedLinear):
        return linear.then("add", x, residual)
    if linear.bias is None:
        return torch.addmm(residual, x, linear.weight.t())
    out: torch.Tensor = linear(x) + residual
    return out


def _padded(x: torch.Tensor, num_rows: int) -> torch.Tensor:
    missing = num_rows - len(x)
    return x if missing <= 0 else torch.cat((x, x[-1:].expand(missing, *x.shape[1:])))
