"""AssistantHead: an assistant of Gemma 4, whose layers have queries alone and read in its target's slots.

Of a row of L committed tokens the target has read the first L - 1. A step computes

    x = pre_projection([the newest token's embedding, as the target scales it ; the target's state of the token before])
    x = its layers over x, each with one query at position L - 1 over the target's L - 1 keys
    h = norm(x),  logits = lm_head(h),  the next step's state = post_projection(h)

Position and keys stay those of the round for all of its tokens: there is no cache, no prefill, nothing to roll back. A
sliding layer sees the last `sliding_window` + 1 keys, as the mask of transformers' own class has it. The assistants of
the smallest targets (E2B, E4B) compare h with centroids of the vocabulary, and compute logits for the tokens of the
best ones alone; all others have -inf.

Shapes: N rows, B texts, T tokens, E hidden size of the target, H that of the assistant, Q query heads, G KV heads, D
head size, S slots, P positions, V vocabulary, K centroids, M tokens of these.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding, scaled_dot_product_attention
from transformers.activations import ACT2FN

from decoding.cache.features import FeatureTap
from decoding.cache.kv_cache import KVCache
from decoding.device import seconds_of, to_device
from decoding.families.rotary import RotaryTables
from decoding.fused.layers import operations_on
from decoding.fused.live_weights import LiveWeights
from decoding.fused.packed_linear import pack_linears
from decoding.gpu.available import kernels_run_on
from decoding.heads.assistant_folder import Assistant
from decoding.heads.target_parts import final_norm
from decoding.network.language_model import LanguageModel
from decoding.network.slot_network import layers_to_read

_TIMED_KEYS = 64  # positions
_PROBED_EVERY = 4  # positions: agreement is measured on some of them

Turns = Seq[Seq[torch.Tensor]]
Attend = Callable[[torch.Tensor, int], torch.Tensor]


class AssistantNetwork(nn.Module):
    """The parameters of an assistant, by the names of its folder."""

    def __init__(self, config: Any) -> None:
        """Make the modules, with weights of no meaning."""
        super().__init__()
        own = config.get_text_config()
        size, target_size = own.hidden_size, config.backbone_hidden_size
        self._activation = ACT2FN[own.hidden_activation]
        self.pre_projection = nn.Linear(2 * target_size, size, bias=False)
        self.post_projection = nn.Linear(size, target_size, bias=False)
        self.model: Any = nn.Module()
        self.model.layers = nn.ModuleList(_layer(own, index) for index in range(own.num_hidden_layers))
        self.model.norm = nn.RMSNorm(size)
        self.masked_embedding: Any = None
        self.lm_head: Any = nn.Linear(size, own.vocab_size, bias=False)
        if config.use_ordered_embeddings:
            self.masked_embedding = nn.Module()
            self.masked_embedding.centroids = nn.Linear(size, config.num_centroids, bias=False)
            self.masked_embedding.token_ordering = nn.Buffer(torch.zeros(own.vocab_size, dtype=torch.int64))
            self.lm_head = nn.Embedding(own.vocab_size, size)  # of which some lines are read

    def states(
        self,
        embedded_NE: torch.Tensor,
        states_NE: torch.Tensor,
        turns: Turns,
        attend: Attend,
        norm: Callable[[Any, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Return the normed states [N, H] behind one query a row, of which logits and the next step's state are made.

        `turns` are the rotary tables [N, 1, D] of the rows' positions, for each layer. `attend(query_NQD, index)` is
        the attention's output [N, Q * D] over the target's keys and values for layer `index`.
        """
        hidden_NH = self.pre_projection(torch.cat((embedded_NE, states_NE), dim=-1))
        for index, (layer, (cos_N1D, sin_N1D)) in enumerate(zip(self.model.layers, turns, strict=True)):
            attention, mlp = layer.self_attn, layer.mlp
            query_XD = attention.q_proj(norm(layer.input_layernorm, hidden_NH)).view(-1, cos_N1D.shape[-1])
            query_NQD = norm(attention.q_norm, query_XD).view(len(hidden_NH), -1, cos_N1D.shape[-1])
            query_NQD = (query_NQD * cos_N1D).addcmul_(query_NQD.roll(cos_N1D.shape[-1] // 2, -1), sin_N1D)
            found_NX = attend(query_NQD, index)
            hidden_NH = hidden_NH + norm(layer.post_attention_layernorm, attention.o_proj(found_NX))
            normed_NH = norm(layer.pre_feedforward_layernorm, hidden_NH)
            found_NH = mlp.down_proj(self._activation(mlp.gate_proj(normed_NH)).mul_(mlp.up_proj(normed_NH)))
            hidden_NH = (hidden_NH + norm(layer.post_feedforward_layernorm, found_NH)).mul_(layer.layer_scalar)
        return norm(self.model.norm, hidden_NH)


def _layer(config: Any, index: int) -> nn.Module:
    layer: Any = nn.Module()
    layer.self_attn, layer.mlp = nn.Module(), nn.Module()
    size, head_size = config.hidden_size, config.per_layer_config[index].head_dim
    layer.self_attn.q_proj = nn.Linear(size, config.num_attention_heads * head_size, bias=False)
    layer.self_attn.q_norm = nn.RMSNorm(head_size)
    layer.self_attn.o_proj = nn.Linear(config.num_attention_heads * head_size, size, bias=False)
    for name in ("gate_proj", "up_proj"):
        setattr(layer.mlp, name, nn.Linear(size, config.intermediate_size, bias=False))
    layer.mlp.down_proj = nn.Linear(config.intermediate_size, size, bias=False)
    for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        setattr(layer, f"{name}_layernorm", nn.RMSNorm(size))
    layer.layer_scalar = nn.Buffer(torch.ones(1))
    return layer  # type: ignore[no-any-return]


def tables_of(config: Any, network: AssistantNetwork) -> dict[str, RotaryTables]:
    """Return the rotary tables of an assistant, by the kinds of its layers."""
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding  # not in older versions

    like_1H = network.model.norm.weight.detach()[None]
    turn = Gemma4TextRotaryEmbedding(config).to(like_1H.device)
    return {kind: RotaryTables(partial(turn, layer_type=kind), like_1H) for kind in set(config.layer_types)}


class Sight:
    """What the rows of a round see in all of its steps: their keys and values, where they are."""

    def __init__(self, cache: KVCache, slots: Seq[int], nums_seen: Seq[int], device: torch.device) -> None:
        """Look at the first `nums_seen[b]` positions of slot `slots[b]`, one at least, from the position behind."""
        self.cache, self.slots, self._nums_seen = cache, list(slots), list(nums_seen)
        self.at_N = to_device(self._nums_seen, device)
        self._is_on_gpu = kernels_run_on(device)
        if self._is_on_gpu:
            from decoding.gpu.attention import TokenRows  # Triton is only where the kernels run

            cache.send_table()  # rows may have changed their slots since the target's last forward
            slots_N = to_device(self.slots, device)
            slots_N = slots_N if cache.places_S is None else cache.places_S[slots_N]
            self._rows = TokenRows(
                torch.arange(len(slots) + 1, device=device), slots_N, self.at_N - 1, 1, max(nums_seen), cache.pages_SC
            )

    def attend(self, query_NQD: torch.Tensor, layer_id: int, window: int | None) -> torch.Tensor:
        """Return the attention's output [N, Q * D] over a layer of the target; `window` keys at most are seen."""
        keys_SGPD, values_SGPD = (each.transpose(1, 2) for each in self.cache.slot_layer(layer_id).stored())
        if self._is_on_gpu:
            from decoding.gpu.attention import Rule, attend

            return attend(query_NQD, keys_SGPD, values_SGPD, self._rows, Rule(1.0, window or 0)).flatten(1)
        found = []
        for query_QD, slot, end in zip(query_NQD, self.slots, self._nums_seen, strict=True):
            seen = slice(0 if window is None else max(0, end - window), end)
            query_1GXD = query_QD.view(1, keys_SGPD.shape[1], -1, query_QD.shape[1])
            row = query_1GXD, keys_SGPD[slot, None, :, seen], values_SGPD[slot, None, :, seen]
            found.append(scaled_dot_product_attention(*row, scale=1.0).flatten(1))
        return torch.cat(found)


class AssistantHead:
    """An assistant beside its target. It holds nothing of a row."""

    block_tokens = 0  # each token takes a step

    def __init__(self, assistant: Assistant, network: AssistantNetwork, target: LanguageModel) -> None:
        """Take over a network whose weights are loaded, in the dtype and on the device of its target."""
        config, own = assistant.config, assistant.config.get_text_config()
        self.network, self._config, self.layer_ids = network.eval().requires_grad_(False), own, assistant.layer_ids
        self.device, self.dtype, self.hidden_size = target.device, target.dtype, target.hidden_size
        self.max_positions: int = own.max_position_embeddings
        self._kinds, self._window = own.layer_types, own.sliding_window + 1
        self._num_best = config.centroid_intermediate_top_k
        self._target, self.feature_layers = target, (len(layers_to_read(target.network)),)
        self._embed, self._target_norm = target.network.get_input_embeddings(), final_norm(target.network)
        self._tables = tables_of(own, network)
        of_layers = self.dtype, own.per_layer_config[0].head_dim, own.hidden_size
        self._epsilon, (_, self._norm_function) = own.rms_norm_eps, operations_on(self.device, *of_layers)
        pack_linears(network)

    @classmethod
    def load(cls, assistant: Assistant, target: LanguageModel) -> "AssistantHead":
        """Read its tensors in the dtype and onto the device of its target; raise ValueError as `Assistant.tensors`."""
        with torch.device("meta"):
            network = AssistantNetwork(assistant.config)
        tensors = assistant.tensors(network.state_dict())
        dtypes = {of: target.dtype if each.is_floating_point() else torch.int64 for of, each in tensors.items()}
        network.load_state_dict({of: each.to(target.device, dtypes[of]) for of, each in tensors.items()}, assign=True)
        return cls(assistant, network, target)

    def tap(self, receive: Callable[..., None]) -> FeatureTap:
        """Return what the target must hand out: its state behind its final norm, which costs hardly anything."""
        return FeatureTap(self.feature_layers, self._target_norm, receive, is_dear=False)

    @property
    def weights(self) -> LiveWeights:
        """The assistant's own weights."""
        return LiveWeights(self.network)

    def share(self) -> "AssistantHead":
        return self

    def release(self) -> None:
        """Do nothing: there is no cache."""

    @torch.inference_mode()
    def step(self, newest_N: torch.Tensor, states_NE: torch.Tensor, sight: Sight) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [N, 1, V] behind the newest token of each row, and the states [N, E] of the next step."""
        num_positions = sight.cache.num_positions + 1
        turns = {
            kind: [each[sight.at_N][:, None] for each in of.reach(num_positions)] for kind, of in self._tables.items()
        }

        def attend(query_NQD: torch.Tensor, index: int) -> torch.Tensor:
            window = self._window if self._kinds[index] == "sliding_attention" else None
            return sight.attend(query_NQD, self.layer_ids[index], window)

        fed = self._embed(newest_N), states_NE, [turns[kind] for kind in self._kinds]
        hidden_NH = self.network.states(*fed, attend, self._norm)
        return self._logits(hidden_NH)[:, None], self.network.post_projection(hidden_NH)

    def _norm(self, module: Any, x_NX: torch.Tensor) -> torch.Tensor:
        return self._norm_function(x_NX, module.weight, self._epsilon)

    def _logits(self, hidden_NH: torch.Tensor) -> torch.Tensor:
        masked = self.network.masked_embedding
        if masked is None:
            return self.network.lm_head(hidden_NH)  # type: ignore[no-any-return]
        best_NK = masked.centroids(hidden_NH).topk(self._num_best).indices
        tokens_NM = masked.token_ordering.view(masked.centroids.out_features, -1)[best_NK].flatten(1)
        logits_NM = (embedding(tokens_NM, self.network.lm_head.weight) @ hidden_NH[:, :, None])[..., 0]
        logits_NV = logits_NM.new_full((len(hidden_NH), self._config.vocab_size), float("-inf"))
        return logits_NV.scatter_(1, tokens_NM, logits_NM)

    @torch.inference_mode()
    def guesses(self, tokens_BT: torch.Tensor, features_BTX: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """Return the likeliest tokens [B, P] behind every fourth position, as heads do; the target reads the rows."""
        num_rows, num_tokens = tokens_BT.shape
        found: list[torch.Tensor] = []
        states_BTE = self._target_norm(features_BTX)
        positions = list(range(1, num_tokens, _PROBED_EVERY))
        self._target.allocate(num_rows, num_tokens)
        self._target.prefill(range(num_rows), tokens_BT.tolist())
        for position in positions:
            assert self._target.cache is not None, "it was allocated"
            sight = Sight(self._target.cache, range(num_rows), [position] * num_rows, self.device)
            found.append(self.step(tokens_BT[:, position], states_BTE[:, position - 1], sight)[0][:, 0].argmax(-1))
        self._target.release()
        return torch.stack(found, dim=1), positions

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        """Measure a step of `num_rows` rows, as in a draft, over slots of its own."""
        cache = KVCache(num_rows, _TIMED_KEYS)
        for index, layer_id in enumerate(self.layer_ids):
            shape = self._config.per_layer_config[index]
            like_NGD = torch.zeros(0, shape.num_key_value_heads, shape.head_dim, dtype=self.dtype, device=self.device)
            cache.slot_layer(layer_id).storage(like_NGD, like_NGD)
        newest_N = torch.zeros(num_rows, dtype=torch.int64, device=self.device)
        states_NE = torch.zeros(num_rows, self.hidden_size, dtype=self.dtype, device=self.device)
        sight = Sight(cache, range(num_rows), [_TIMED_KEYS] * num_rows, self.device)
        return seconds_of(lambda: self.step(newest_N, states_NE, sight), self.device)
