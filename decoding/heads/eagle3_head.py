"""Eagle3Head: an EAGLE-3 head over slots. Position i of its cache belongs to pair i.

A pair is a projected feature of the target at position i and the token at position i + 1. Where no feature is known
yet, behind the newest token, the state that the head itself computed for the pair before stands in for it.

Shapes: B rows, N pairs in all or some of them, H hidden size, D vocabulary of the head, V that of the target, X any
number of features.
"""

import time
from collections.abc import Sequence as Seq
from copy import copy
from typing import Any

import torch
from torch.nn.functional import embedding

from decoding.cache.kv_cache import KVCache, Packing
from decoding.device import synchronize, to_device
from decoding.fused import kernels
from decoding.fused.attention import Heads, Window, attention_here
from decoding.fused.decoder import FUSED_LINEARS
from decoding.fused.layers import Layer, Norm, NormFunction, torch_norm
from decoding.fused.packed_linear import pack_linears
from decoding.fused.rotary_tables import RotaryTables
from decoding.gpu.available import kernels_run_on
from decoding.heads.eagle3_network import Eagle3Network
from decoding.network.target import timed_start


class Eagle3Head:
    """A head with a slot cache of its own."""

    def __init__(self, network: Eagle3Network, target_ids_D: torch.Tensor | None, layer_ids: Seq[int]) -> None:
        """Take over a network whose weights are loaded, on its device.

        `target_ids_D` are the target's ids of the head's (None: the same ids); the features are what enters the layers
        `layer_ids` of the target.
        """
        config, layer_config = network.config, network.layer_config
        self.layer_ids = tuple(layer_ids)
        self.network = network.eval().requires_grad_(False)
        weight = network.fc.weight
        self.device, self.dtype, self.hidden_size = weight.device, weight.dtype, config.hidden_size
        self.vocab_size = config.vocab_size
        self.max_positions: int | None = layer_config.max_position_embeddings
        self.cache: KVCache | None = None
        self._target_ids_D = None if target_ids_D is None else target_ids_D.to(self.device)
        self._residual_is_normed, self._carries_normed = config.norm_before_residual, config.norm_output
        pack_linears(network.layers, FUSED_LINEARS)
        pack_linears(network)
        self._is_on_gpu = kernels_run_on(self.device)
        first: Any = network.layers[0]
        self._heads = Heads(
            num_kv_heads=layer_config.num_key_value_heads,
            group=layer_config.num_attention_heads // layer_config.num_key_value_heads,
            head_size=first.self_attn.head_dim,
        )
        self._kernels: kernels.Kernels | None = None
        norm: NormFunction = torch_norm
        if self._is_on_gpu:
            from decoding.gpu.norms import rms_norm  # Triton is only where the kernels run

            norm = rms_norm
        elif self.device.type == "cpu":
            self._kernels = kernels.load(self.dtype, self._heads.head_size, config.hidden_size)
            norm = norm if self._kernels is None else self._kernels.rms_norm
        self._layers = [Layer(layer, norm) for layer in network.layers]
        self._hidden_norm, self._final_norm = Norm(first.hidden_norm, norm), Norm(network.norm, norm)
        self._rotary = RotaryTables(network.rotary_emb, self._layers[0].attention_norm.weight[None])
        self._window = config.sliding_window

    def share(self) -> "Eagle3Head":
        """Return the same head with a cache of its own."""
        twin = copy(self)
        twin.cache = None
        return twin

    def allocate(self, num_slots: int, num_positions: int) -> None:
        """Reserve a fresh cache of slots x positions."""
        self.cache = KVCache(num_slots, num_positions, self.device if self._is_on_gpu else None)

    def release(self) -> None:
        """Free the cache's memory."""
        self.cache = None

    @torch.inference_mode()
    def project(self, features_NX: torch.Tensor) -> torch.Tensor:
        """Return what the head keeps of the target's features, [N, H]."""
        return self.network.project(features_NX)

    @torch.inference_mode()
    def read(
        self,
        tokens_N: torch.Tensor,
        states_NH: torch.Tensor,
        starts: Seq[int],
        lengths: Seq[int],
        slots: Seq[int],
        *,
        is_wanted: bool = True,
    ) -> torch.Tensor:
        """Read pairs, the rows' ones end to end; return the state after each of them, [N, H].

        Row b has `lengths[b]` pairs from position `starts[b]` of slot `slots[b]` on: the tokens, and what stands beside
        them (projected features, or states). Unless `is_wanted`, only keys and values are computed, and what
        is returned has no meaning.
        """
        assert self.cache is not None, "allocate() comes first"
        width = max(lengths)
        positions_BT = to_device(starts, self.device)[:, None] + torch.arange(width, device=self.device)
        is_read_back = self._kernels is None and not self._is_on_gpu
        packing = Packing.of(lengths, self.device, width, is_read_back=is_read_back or self._windowed is not None)
        slots_B = None if list(slots) == list(range(len(slots))) else to_device(list(slots), self.device)
        plan = self.cache.plan(slots_B, positions_BT, max(starts) + width, packing)
        tables_PD = self._rotary.reach(self.cache.num_positions)
        attention = attention_here(
            self._heads, plan.positions_N, self.cache, plan, tables_PD, self._kernels, self._windowed
        )
        embedded_NH = embedding(tokens_N, self.network.embed_tokens.weight)
        normed_NH = self._hidden_norm(states_NH)
        hidden_NH = normed_NH if self._residual_is_normed else states_NH
        first = self._layers[0]
        qkv_NX = first.qkv(torch.cat((first.attention_norm(embedded_NH), normed_NH), dim=-1))
        for index, layer in enumerate(self._layers):
            goes_on = is_wanted or index < len(self._layers) - 1
            qkv_NX = layer.project(hidden_NH) if index else qkv_NX
            found_NX = attention(qkv_NX, self.cache.slot_layer(index), layer.norms, is_wanted=goes_on)
            if found_NX is None:
                break
            hidden_NH = layer.finish(hidden_NH, found_NX)
        return hidden_NH

    @torch.inference_mode()
    def logits(self, states_NH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits over the target's ids [N, 1, V], and the states that the next step takes [N, H].

        Ids that the head lacks have -inf.
        """
        normed_NH = self._final_norm(states_NH)
        logits_ND = self.network.lm_head(normed_NH)
        if self._target_ids_D is not None:
            spread_NV = logits_ND.new_full((len(logits_ND), self.vocab_size), float("-inf"))
            logits_ND = spread_NV.index_copy_(1, self._target_ids_D, logits_ND)
        return logits_ND[:, None], normed_NH if self._carries_normed else states_NH

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        """Measure a step of `num_rows` rows, as in a draft. The cache is overwritten."""
        assert self.cache is not None
        start = timed_start(self.cache.num_positions, num_tokens)
        tokens_N = torch.zeros(num_rows * num_tokens, dtype=torch.int64, device=self.device)
        states_NH = torch.zeros(len(tokens_N), self.hidden_size, dtype=self.dtype, device=self.device)
        synchronize(self.device)
        started = time.perf_counter()
        self.logits(self.read(tokens_N, states_NH, [start] * num_rows, [num_tokens] * num_rows, range(num_rows)))
        synchronize(self.device)
        return time.perf_counter() - started

    @property
    def _windowed(self) -> Window | None:
        """The window of its attention, where the slots are longer."""
        assert self.cache is not None
        if self._window is None or self.cache.num_positions <= self._window:
            return None
        return Window(self._window, 0)
