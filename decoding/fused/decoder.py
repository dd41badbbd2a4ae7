"""FusedDecoder: the forward of a Llama-shaped network in few, large operations, over the network's own weights.

Eager model code spends half a millisecond a layer on small operations. Here queries, keys and values come from one
product; sums and activations are done in the products before them; only the attention handles rows (everything else is
one line a token, so ragged rows cost nothing); and unused results are not computed: a prefill has no logits, and of its
last layer only keys and values.

`fits` decides by structure, `decoding/network/probe.py` by measurement; other networks run transformers' own code.

Shapes: B rows, N tokens in all, M tokens whose logits are wanted, E hidden size, X any number of features, V
vocabulary, P positions, D head size.
"""

import re
from typing import Any

import torch
from torch.nn.functional import embedding, rms_norm, silu
from transformers import PreTrainedModel

from decoding.cache.kv_cache import KVCache, Plan
from decoding.checkpoint.layer_range import LayerRange
from decoding.fused.attention import Heads, KernelAttention, KernelForward, Norms, TorchAttention, load_kernels
from decoding.fused.kernels import Kernels
from decoding.fused.layers import KernelLayers, LayerParts
from decoding.fused.linear import KernelLinear
from decoding.fused.packed_linear import Packed

FUSED_LINEARS = (("q_proj", "k_proj", "v_proj"),)  # one product gives all of them
_MODEL_TYPES = {"llama", "mistral", "qwen2", "qwen3"}
_LAYER_PARAMETERS = re.compile(
    r"model\.layers\.\d+\."
    r"(self_attn\.([qkvo]_proj\.(weight|bias)|[qk]_norm\.weight)"
    r"|mlp\.(gate|up|down)_proj\.(weight|bias)|(input|post_attention)_layernorm\.weight)"
)
_OTHER_PARAMETERS = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
# oneDNN multiplies one or two lines slower than four (22 ms against 18 for a 283 M network).
_FEWEST_LINES_ON_CPU = 4


class FusedDecoder:
    """Runs the layers of a transformers network. It shares its weights with the network, which stays callable."""

    def __init__(self, model: PreTrainedModel, layers: LayerRange | None = None) -> None:
        """Run the layers of a network that fits, whose linear layers were packed with `FUSED_LINEARS` together.

        By default it runs all layers. Without the first ones its input is hidden states in place of tokens; without the
        last ones its output is hidden states.
        """
        network: Any = model.model
        config = model.config
        self._range = layers or LayerRange.whole(len(network.layers))
        own = network.layers[self._range.first : self._range.end]
        self._like_1E = own[0].input_layernorm.weight[None]  # has the dtype, the device and the size of hidden states
        self._embedding = network.embed_tokens.weight if self._range.has_embedding else None
        self._heads = Heads(
            num_kv_heads=config.num_key_value_heads,
            group=config.num_attention_heads // config.num_key_value_heads,
            head_size=own[0].self_attn.head_dim,
        )
        self.kernels = load_kernels(self._heads, self._like_1E)  # None: torch's own operations
        self._final_norm = _Norm(network.norm, self.kernels)
        self._head = model.get_output_embeddings() if self._range.has_head else None
        self._layers = [_Layer(layer, self.kernels) for layer in own]
        self._at_once = self._kernel_layers()
        self._rotary = network.rotary_emb
        self._tables_PD: tuple[torch.Tensor, torch.Tensor] | None = None
        self._fewest_lines = _FEWEST_LINES_ON_CPU if self._like_1E.device.type == "cpu" else 1

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Tell whether each parameter of the network is used here, and its configuration asks for nothing else."""
        config = model.config
        if config.model_type not in _MODEL_TYPES or config.hidden_act != "silu":
            return False
        layer_types = getattr(config, "layer_types", None)
        slides = set(layer_types) != {"full_attention"} if layer_types else getattr(config, "sliding_window", None)
        names = [name for name, _ in model.named_parameters()]
        if len({parameter.dtype for parameter in model.parameters()}) > 1:
            return False
        return not slides and all(name in _OTHER_PARAMETERS or _LAYER_PARAMETERS.fullmatch(name) for name in names)

    @property
    def is_batch_invariant(self) -> bool:
        """Whether a token's logits are the same, bit for bit, in any batch: true if only our kernels run."""
        return self._at_once is not None and (self._head is None or isinstance(self._head, KernelLinear))

    def reach(self, num_positions: int) -> None:
        """Prepare for sequences of up to `num_positions` tokens."""
        positions = torch.arange(num_positions, device=self._like_1E.device)[None]
        cos_1PD, sin_1PD = self._rotary(self._like_1E, positions)
        half = cos_1PD.shape[-1] // 2
        # With the sign of rotate_half in the table, the rotation is x * cos + swapped(x) * sin.
        sin_PD = torch.cat((-sin_1PD[0, :, :half], sin_1PD[0, :, half:]), dim=-1)
        self._tables_PD = cos_1PD[0].contiguous(), sin_PD

    def forward(
        self, fed_N: torch.Tensor, positions_N: torch.Tensor, wanted_M: torch.Tensor, cache: KVCache, plan: Plan
    ) -> torch.Tensor:
        """Return logits [M, V] after the wanted tokens; the keys and values of all N are stored as planned.

        `fed_N` are tokens, or hidden states [N, E]. Without a head all hidden states [N, E] are returned.
        """
        num_tokens = len(fed_N)
        is_last_wanted = self._head is None or len(wanted_M) > 0
        if self._at_once is not None:
            hidden_NE = self._embedded(fed_N)
            self._at_once.run(
                hidden_NE, self._kernel_forward(positions_N, cache, plan), cache, is_wanted=is_last_wanted
            )
            return self._out(hidden_NE, wanted_M)
        attention = self._attention(positions_N, cache, plan)
        hidden_NE = self._embedded(_padded(fed_N, self._fewest_lines))
        for index, layer in enumerate(self._layers, self._range.first):
            is_wanted = index < self._range.end - 1 or is_last_wanted
            found_NX = attention(layer.project(hidden_NE), cache.slot_layer(index), layer.norms, is_wanted=is_wanted)
            if found_NX is None:
                break
            hidden_NE = layer.finish(hidden_NE, found_NX)
        return self._out(hidden_NE[:num_tokens], wanted_M)

    def _embedded(self, fed_N: torch.Tensor) -> torch.Tensor:
        """Return hidden states in memory of our own, since the layers may write there."""
        return fed_N.clone() if self._embedding is None else embedding(fed_N, self._embedding)

    def _out(self, hidden_NE: torch.Tensor, wanted_M: torch.Tensor) -> torch.Tensor:
        if self._head is None:
            return hidden_NE
        if not len(wanted_M):
            return hidden_NE.new_zeros(0, self._head.out_features)
        logits_MV: torch.Tensor = self._head(self._final_norm(hidden_NE[wanted_M]))
        return logits_MV

    def _kernel_layers(self) -> KernelLayers | None:
        parts = [layer.parts() for layer in self._layers]
        known = [part for part in parts if part is not None]
        if self.kernels is None or self.kernels.layers_function is None or len(known) < len(parts):
            return None
        return KernelLayers(self.kernels.layers_function, known, self._heads, self._range.first)

    def _kernel_forward(self, positions_N: torch.Tensor, cache: KVCache, plan: Plan) -> KernelForward:
        return KernelForward(self._heads, cache, plan, *self._turns(positions_N, cache))

    def _attention(self, positions_N: torch.Tensor, cache: KVCache, plan: Plan) -> KernelAttention | TorchAttention:
        if self.kernels is not None:
            return KernelAttention(self.kernels, self._heads, self._kernel_forward(positions_N, cache, plan))
        return TorchAttention(self._heads, plan, *self._turns(positions_N, cache))

    def _turns(
        self, positions_N: torch.Tensor, cache: KVCache
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Return the tokens' lines in the rotary tables, and the tables."""
        if self._tables_PD is None or len(self._tables_PD[0]) < cache.num_positions:
            self.reach(cache.num_positions)
        assert self._tables_PD is not None
        return positions_N.clamp(max=len(self._tables_PD[0]) - 1), self._tables_PD  # padding may be beyond the end


class _Layer:
    """One decoder layer around its attention."""

    def __init__(self, layer: Any, functions: Kernels | None) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._attention_norm = _Norm(layer.input_layernorm, functions)
        self._mlp_norm = _Norm(layer.post_attention_layernorm, functions)
        self._qkv = attention.q_proj.fused
        self._out, self._gate, self._up, self._down = attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj
        self.norms: Norms | None = None
        if hasattr(attention, "q_norm"):
            epsilon = attention.q_norm.variance_epsilon
            self.norms = Norms(attention.q_norm.weight, attention.k_norm.weight, epsilon)

    def parts(self) -> LayerParts | None:
        """Return the parts that our kernels run in one call; None if a linear layer belongs to oneDNN or torch."""
        linears = (self._qkv, self._out, self._gate, self._up, self._down)
        if not all(isinstance(linear, KernelLinear) for linear in linears):
            return None
        attention, mlp = self._attention_norm, self._mlp_norm
        epsilons = (attention.epsilon, mlp.epsilon)
        return LayerParts(attention.weight, mlp.weight, epsilons, *linears, self.norms)

    def project(self, hidden_NE: torch.Tensor) -> torch.Tensor:
        """Compute queries, keys and values of every token, side by side."""
        qkv_NX: torch.Tensor = self._qkv(self._attention_norm(hidden_NE))
        return qkv_NX

    def finish(self, hidden_NE: torch.Tensor, found_NX: torch.Tensor) -> torch.Tensor:
        """Compute the hidden states after this layer from the output of its attention."""
        hidden_NE = _add(self._out, found_NX, hidden_NE)
        normed_NE = self._mlp_norm(hidden_NE)
        if isinstance(self._up, Packed):
            gated_NX = self._up.gated(normed_NE, self._gate)
        else:
            gated_NX = silu(self._gate(normed_NE)) * self._up(normed_NE)
        return _add(self._down, gated_NX, hidden_NE)


class _Norm:
    """Root mean square normalization of lines."""

    def __init__(self, module: Any, functions: Kernels | None) -> None:
        self.weight, self.epsilon, self._functions = module.weight, module.variance_epsilon, functions

    def __call__(self, x_NE: torch.Tensor) -> torch.Tensor:
        if self._functions is not None:
            return self._functions.rms_norm(x_NE, self.weight, self.epsilon)
        return rms_norm(x_NE, self.weight.shape, self.weight, self.epsilon)


def _add(linear: Any, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    if isinstance(linear, Packed):
        return linear.plus(x, residual)
    if linear.bias is None:
        return torch.addmm(residual, x, linear.weight.t())
    out: torch.Tensor = linear(x) + residual
    return out


def _padded(x: torch.Tensor, num_lines: int) -> torch.Tensor:
    missing = num_lines - len(x)
    return x if missing <= 0 else torch.cat((x, x[-1:].expand(missing, *x.shape[1:])))
