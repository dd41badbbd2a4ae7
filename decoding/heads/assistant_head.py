"""AssistantHead: an assistant of Gemma 4, whose layers have queries alone and read in its target's slots.

For a row of L committed tokens the target has keys and values of the first L - 1, and its state after its final norm
behind the last of these. A step computes

    x = pre_projection([embedding of the newest token, as the target scales it ; state])
    x = its layers over x, each with one query at position L - 1 over the target's L - 1 keys
    h = norm(x);  logits = lm_head(h);  the next step's state = post_projection(h)

Position and keys stay those of the round for all of its tokens: there is no cache, no prefill, nothing to roll back. A
sliding layer sees the last `sliding_window` + 1 keys, as transformers' mask has it.

The assistants of the smallest targets compare h with centroids of the vocabulary first, and compute logits for the
tokens of the best ones alone; all others have -inf.

Shapes: N rows, E hidden size of the target, H that of the assistant, Q query heads, G KV heads, D head size, S slots, P
positions, L visible positions, V vocabulary, C centroids, M tokens of the best of them.
"""

import logging
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention
from transformers.activations import ACT2FN

from decoding.cache.features import FeatureTap
from decoding.cache.kv_cache import KVCache
from decoding.device import seconds_of, to_device
from decoding.fused.attention import RotaryTables
from decoding.fused.live_weights import LiveWeights
from decoding.fused.packed_linear import pack_linears
from decoding.gpu.available import kernels_run_on
from decoding.heads.assistant_folder import Assistant, fitting_assistant
from decoding.heads.attach import LEAST_AGREEMENT, drawn
from decoding.heads.fit import final_norm
from decoding.network.language_model import LanguageModel
from decoding.network.slot_network import layers_to_read
from decoding.network.target import Target, once_more
from decoding.sampling.logprobs import Stretch

_TIMED_KEYS = 64
_NUM_ROWS, _NUM_TOKENS, _PROBED_EVERY = 8, 40, 4
_log = logging.getLogger(__name__)


class _Layer(nn.Module):
    """The parameters of a decoder layer, by the names of its folder."""

    def __init__(self, config: Any, index: int) -> None:
        super().__init__()
        size, head_size = config.hidden_size, config.per_layer_config[index].head_dim
        norm, linear = partial(nn.RMSNorm, eps=config.rms_norm_eps), partial(nn.Linear, bias=False)
        self.self_attn, self.mlp = nn.Module(), nn.Module()
        self.self_attn.q_proj = linear(size, config.num_attention_heads * head_size)
        self.self_attn.q_norm = norm(head_size)
        self.self_attn.o_proj = linear(config.num_attention_heads * head_size, size)
        self.mlp.gate_proj = linear(size, config.intermediate_size)
        self.mlp.up_proj = linear(size, config.intermediate_size)
        self.mlp.down_proj = linear(config.intermediate_size, size)
        self.input_layernorm, self.post_attention_layernorm = norm(size), norm(size)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = norm(size), norm(size)
        self.layer_scalar = nn.Buffer(torch.ones(1))


class AssistantNetwork(nn.Module):
    """The parameters of an assistant, by the names of its folder."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        own = config.get_text_config()
        self.pre_projection = nn.Linear(2 * config.backbone_hidden_size, own.hidden_size, bias=False)
        self.post_projection = nn.Linear(own.hidden_size, config.backbone_hidden_size, bias=False)
        self.model = nn.Module()
        self.model.layers = nn.ModuleList(_Layer(own, index) for index in range(own.num_hidden_layers))
        self.model.norm = nn.RMSNorm(own.hidden_size, own.rms_norm_eps)
        self.masked_embedding: Any = None
        if config.use_ordered_embeddings:
            self.masked_embedding = nn.Module()
            self.masked_embedding.centroids = nn.Linear(own.hidden_size, config.num_centroids, bias=False)
            self.masked_embedding.token_ordering = nn.Buffer(torch.zeros(own.vocab_size, dtype=torch.int64))
            self.lm_head: Any = nn.Embedding(own.vocab_size, own.hidden_size)  # of which some lines are read
        else:
            self.lm_head = nn.Linear(own.hidden_size, own.vocab_size, bias=False)


class Sight:
    """What the rows of a round see, for all of its steps: their keys and values in place, and how queries turn."""

    def __init__(self, head: "AssistantHead", cache: KVCache, slots: Seq[int], nums_seen: Seq[int]) -> None:
        """Look at the first `nums_seen[b]` positions of slot `slots[b]`, one at least, from the position behind."""
        self._cache, self._slots, self._nums_seen = cache, list(slots), list(nums_seen)
        self._is_on_gpu = kernels_run_on(head.device)
        at_N = to_device(self._nums_seen, head.device)
        self.turns = {kind: _at(tables.reach(cache.num_positions + 1), at_N) for kind, tables in head.rotary.items()}
        if self._is_on_gpu:
            from decoding.gpu.attention import TokenRows  # Triton is only where the kernels run

            slots_N = to_device(self._slots, head.device)
            slots_N = slots_N if cache.places_S is None else cache.places_S[slots_N]
            row_first = torch.arange(len(slots) + 1, device=head.device)
            self._rows = TokenRows(row_first, slots_N, at_N - 1, 1, max(nums_seen))

    def attend(self, query_NQD: torch.Tensor, layer_id: int, window: int | None) -> torch.Tensor:
        """Return the attention's output [N, Q * D] over a layer of the target; `window` keys at most are seen."""
        keys_SGPD, values_SGPD = (each.transpose(1, 2) for each in self._cache.slot_layer(layer_id).stored())
        if self._is_on_gpu:
            from decoding.gpu.attention import Rule, attend

            return attend(query_NQD, keys_SGPD, values_SGPD, self._rows, Rule(1.0, window or 0)).flatten(1)
        found = []
        for query_QD, slot, end in zip(query_NQD, self._slots, self._nums_seen, strict=True):
            seen = slice(0 if window is None else max(0, end - window), end)
            query_GXD = query_QD.view(keys_SGPD.shape[1], -1, query_QD.shape[1])
            key_GLD, value_GLD = keys_SGPD[slot, :, seen], values_SGPD[slot, :, seen]
            found.append(scaled_dot_product_attention(query_GXD[None], key_GLD[None], value_GLD[None], scale=1.0))
        return torch.cat(found).flatten(1)


def _at(tables_PD: tuple[torch.Tensor, torch.Tensor], at_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return tables_PD[0][at_N][:, None], tables_PD[1][at_N][:, None]


class AssistantHead:
    """An assistant beside its target."""

    block_tokens = 0  # each token takes a step

    def __init__(self, assistant: Assistant, network: AssistantNetwork, target: LanguageModel) -> None:
        """Take over a network whose weights are loaded, in the dtype and on the device of its target."""
        config: Any = assistant.config
        own = config.get_text_config()
        from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding  # not in older versions

        self.network = network.eval().requires_grad_(False)
        self.device, self.dtype, self.hidden_size = target.device, target.dtype, target.hidden_size
        self.vocab_size, self.max_positions = own.vocab_size, own.max_position_embeddings
        self.layer_ids = assistant.layer_ids
        self.kinds = tuple(own.layer_types)
        self._windows = [own.sliding_window + 1 if kind == "sliding_attention" else None for kind in self.kinds]
        self._activation, self._num_best = ACT2FN[own.hidden_activation], config.centroid_intermediate_top_k
        self._embed, self._target_norm = target.network.get_input_embeddings(), final_norm(target.network)
        self._num_target_layers = len(layers_to_read(target.network))
        self._shapes = {layer_id: own.per_layer_config[index] for index, layer_id in enumerate(self.layer_ids)}
        turn, like_1H = Gemma4TextRotaryEmbedding(own).to(self.device), network.model.norm.weight[None]
        self.rotary = {kind: RotaryTables(partial(turn, layer_type=kind), like_1H) for kind in set(self.kinds)}
        pack_linears(network)

    def tap(self, receive: Any) -> FeatureTap:
        """Return what the target must hand out: its state behind the final norm, which costs hardly anything."""
        return FeatureTap((self._num_target_layers,), self._target_norm, receive, is_dear=False)

    @property
    def weights(self) -> LiveWeights:
        """Its own weights."""
        return LiveWeights(self.network)

    def share(self) -> "AssistantHead":
        """Return the same head: it holds nothing of a row."""
        return self

    def release(self) -> None:
        """Do nothing: there is no cache."""

    @torch.inference_mode()
    def step(
        self, newest_N: torch.Tensor, states_NE: torch.Tensor, sight: Sight
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [N, 1, V] behind the newest token of each row, and the states [N, E] of the next step."""
        hidden_NH = self.network.pre_projection(torch.cat((self._embed(newest_N), states_NE), dim=-1))
        for index, layer in enumerate(self.network.model.layers):
            hidden_NH = self._layer(layer, index, hidden_NH, sight)
        hidden_NH = self.network.model.norm(hidden_NH)
        return self._logits(hidden_NH)[:, None], self.network.post_projection(hidden_NH)

    def _layer(self, layer: Any, index: int, hidden_NH: torch.Tensor, sight: Sight) -> torch.Tensor:
        attention, mlp = layer.self_attn, layer.mlp
        (size,) = attention.q_norm.weight.shape
        query_NQD = attention.q_proj(layer.input_layernorm(hidden_NH)).view(len(hidden_NH), -1, size)
        query_NQD = rms_norm(query_NQD, (size,), attention.q_norm.weight, attention.q_norm.eps)
        cos_N1D, sin_N1D = sight.turns[self.kinds[index]]
        query_NQD = (query_NQD * cos_N1D).addcmul_(query_NQD.roll(size // 2, -1), sin_N1D)
        found_NX = sight.attend(query_NQD, self.layer_ids[index], self._windows[index])
        hidden_NH = hidden_NH + layer.post_attention_layernorm(attention.o_proj(found_NX))
        normed_NH = layer.pre_feedforward_layernorm(hidden_NH)
        gated_NX = self._activation(mlp.gate_proj(normed_NH)).mul_(mlp.up_proj(normed_NH))
        return (hidden_NH + layer.post_feedforward_layernorm(mlp.down_proj(gated_NX))).mul_(layer.layer_scalar)

    def _logits(self, hidden_NH: torch.Tensor) -> torch.Tensor:
        masked = self.network.masked_embedding
        if masked is None:
            logits_NV: torch.Tensor = self.network.lm_head(hidden_NH)
            return logits_NV
        best_NK = masked.centroids(hidden_NH).topk(self._num_best).indices
        tokens_CX = masked.token_ordering.view(masked.centroids.out_features, -1)
        tokens_NM = tokens_CX[best_NK].flatten(1)
        logits_NM = (embedding(tokens_NM, self.network.lm_head.weight) @ hidden_NH[:, :, None])[..., 0]
        return logits_NM.new_full((len(hidden_NH), self.vocab_size), float("-inf")).scatter_(1, tokens_NM, logits_NM)

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        """Measure a step of `num_rows` rows, as in a draft, over slots of its own."""
        cache = KVCache(num_rows, _TIMED_KEYS)
        for layer_id, shape in self._shapes.items():
            size = 0, shape.num_key_value_heads, shape.head_dim
            like_NGD = torch.zeros(size, dtype=self.dtype, device=self.device)
            cache.slot_layer(layer_id).storage(like_NGD, like_NGD)
        newest_N = torch.zeros(num_rows, dtype=torch.int64, device=self.device)
        states_NE = torch.zeros(num_rows, self.hidden_size, dtype=self.dtype, device=self.device)
        sight = Sight(self, cache, range(num_rows), [_TIMED_KEYS] * num_rows)
        return seconds_of(lambda: self.step(newest_N, states_NE, sight), self.device)


def attach_assistant(path: str, target: Target, target_path: str) -> AssistantHead:
    """Load the assistant in the folder or hub model `path` beside a target, in its dtype and on its device.

    Raises ValueError, in one line that names the folder, for one that does not fit its target, or that agrees with it
    on less than 15 % of its tokens.
    """
    if not isinstance(target, LanguageModel):
        raise ValueError(
            f"{path!r} is an assistant, which reads the keys of its target in the same process, and the layers of "
            f"{target_path!r} are in others; use another draft, or no stages"
        )
    assistant = fitting_assistant(path, target.network.config, target_path)
    with torch.device("meta"):
        network = AssistantNetwork(assistant.config)
    weights = assistant.tensors(network.state_dict())
    network.load_state_dict(
        {
            name: tensor.to(target.device, target.dtype if tensor.is_floating_point() else torch.int64)
            for name, tensor in weights.items()
        },
        assign=True,
    )
    head = AssistantHead(assistant, network, target)
    share = once_more(lambda: agreement(head, target))
    if share < LEAST_AGREEMENT:
        raise ValueError(
            f"{path!r} agrees with {target_path!r} on {share:.0%} of the tokens, expected at least "
            f"{LEAST_AGREEMENT:.0%}: it was trained for another target"
        )
    _log.info("the assistant %r agrees with its target on %s of the tokens", path, f"{share:.0%}")
    return head


@torch.inference_mode()
def agreement(head: AssistantHead, target: LanguageModel) -> float:
    """Return the share of tokens on which an assistant's first guess is its target's, over text of the target's own.

    What is in the target's slots is lost, and so is its tap.
    """
    num_tokens = min(_NUM_TOKENS, target.max_positions or _NUM_TOKENS)
    first = torch.randint(target.vocab_size, (_NUM_ROWS,), generator=torch.Generator().manual_seed(0)).tolist()
    kept: list[torch.Tensor] = []
    try:
        texts = drawn(target, first, num_tokens)
        target.hand_out(head.tap(lambda *given: kept.append(given[-1])))
        asked = [Stretch.over(row, 0, text, [*text[1:], text[0]], 1) for row, text in enumerate(texts)]
        scores = [target.logprobs([stretch])[0] for stretch in asked]
        states_BTE, tokens_BT = torch.cat(kept).view(len(texts), num_tokens, -1), to_device(texts, head.device)
        picked_BT = to_device([[at.top[0][0] for at in row] for row in scores], head.device)
        shares = []
        for newest in range(1, num_tokens, _PROBED_EVERY):
            assert target.cache is not None
            sight = Sight(head, target.cache, range(len(texts)), [newest] * len(texts))
            logits_B1V, _ = head.step(tokens_BT[:, newest], states_BTE[:, newest - 1], sight)
            shares.append((logits_B1V[:, 0].argmax(-1) == picked_BT[:, newest]).float().mean())
        return float(torch.stack(shares).mean())
    finally:
        target.hand_out(None)
        target.release()
