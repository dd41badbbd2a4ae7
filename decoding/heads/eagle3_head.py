"""Eagle3Head: an EAGLE-3 or P-EAGLE head over slots. Position i of its cache belongs to pair i.

A pair is a projected feature of the target at position i and the token at position i + 1. Where no feature is known
yet, behind the newest token, the state that the head itself computed for the pair before stands in for it; a P-EAGLE
head reads masks there instead, which stand for feature and token.

Shapes: B rows, N pairs in all or some of them, H hidden size, D vocabulary of the head, V that of the target, X any
number of features.
"""

from collections.abc import Sequence as Seq
from typing import Any

import torch

from decoding.cache.plan import Packing, Plan
from decoding.device import seconds_of, to_device
from decoding.fused.attention import Window, attention_here
from decoding.fused.layers import Norm
from decoding.fused.linear import embedded
from decoding.heads.format.networks import Eagle3Network
from decoding.heads.slot_head import SlotHead
from decoding.network.target import timed_start

# Starts, lengths and slots of rows: row b has lengths[b] pairs from position starts[b] of slot slots[b] on.
Places = tuple[Seq[int], Seq[int], Seq[int]]


class Eagle3Head(SlotHead):
    """A head that drafts token by token, or all of them behind masks in one forward."""

    network: Eagle3Network
    mask_token_id = 0

    def __init__(self, network: Eagle3Network, target_ids_D: torch.Tensor | None, layer_ids: Seq[int]) -> None:
        super().__init__(network, target_ids_D, layer_ids)
        config = network.config
        self._residual_is_normed, self._carries_normed = config.norm_before_residual, config.norm_output
        if network.mask_hidden is not None:
            assert config.mask_token_id is not None
            self.mask_token_id = config.mask_token_id
            self.block_tokens = config.num_speculative_tokens
            self.mask_1H = self.project(network.mask_hidden[0])
        first: Any = network.layers[0]
        self._hidden_norm = Norm(first.hidden_norm, self._norm)

    def _renew(self) -> None:
        if self.network.mask_hidden is not None:
            self.mask_1H.copy_(self.project(self.network.mask_hidden[0]))

    @torch.inference_mode()
    def read(
        self, tokens_N: torch.Tensor, states_NH: torch.Tensor, places: Places, *, is_wanted: bool = True
    ) -> torch.Tensor:
        """Read pairs, the rows' ones end to end; return the state after each of them, [N, H].

        Pairs are tokens, and what stands beside them (projected features, or states). Unless `is_wanted`, only keys and
        values are computed, and what is returned has no meaning.
        """
        assert self.cache is not None, "allocate() comes first"
        starts, lengths, slots = places
        width = max(lengths)
        positions_BT = to_device(starts, self.device)[:, None] + torch.arange(width, device=self.device)
        is_read_back = self._kernels is None and not self._is_on_gpu
        packing = Packing.of(lengths, self.device, width, is_read_back=is_read_back or self._windowed is not None)
        plan = self.cache.plan(self._slots(slots), positions_BT, max(starts) + width, packing)
        return self.read_planned(tokens_N, states_NH, plan, is_wanted=is_wanted)

    @torch.inference_mode()
    def read_planned(
        self, tokens_N: torch.Tensor, states_NH: torch.Tensor, plan: Plan, *, is_wanted: bool = True
    ) -> torch.Tensor:
        """Read pairs as `read` does, at the places of a plan; on a GPU nothing here waits for the device."""
        assert self.cache is not None, "allocate() comes first"
        self.cache.use(plan)
        tables_PD = self._rotary.reach(self.cache.num_positions)
        attention = attention_here(
            self._heads, plan.positions_N, self.cache, plan, tables_PD, self._kernels, self._windowed
        )
        embedded_NH = embedded(tokens_N, self._embedding)
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
        logits_NV = self.spread(self._lm_head(normed_NH))
        return logits_NV[:, None], normed_NH if self._carries_normed else states_NH

    def guesses(self, tokens_BT: torch.Tensor, features_BTX: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """Return what the head predicts behind each pair: behind every position but the first."""
        num_rows, num_pairs = len(tokens_BT), tokens_BT.shape[1] - 1
        lines_NH = self.project(features_BTX[:, :-1].flatten(0, 1))
        self.allocate(num_rows, num_pairs)
        try:
            places = [0] * num_rows, [num_pairs] * num_rows, range(num_rows)
            states_NH = self.read(tokens_BT[:, 1:].flatten(), lines_NH, places)
        finally:
            self.release()
        guesses_N = self.logits(states_NH)[0][:, 0].argmax(-1)
        return guesses_N.view(num_rows, num_pairs), list(range(1, num_pairs + 1))

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        """Measure a step of `num_rows` rows, as in a draft. The cache is overwritten."""
        assert self.cache is not None
        num_tokens = max(num_tokens, self.block_tokens)
        start = timed_start(self.cache.num_positions, num_tokens)
        tokens_N = torch.zeros(num_rows * num_tokens, dtype=torch.int64, device=self.device)
        states_NH = torch.zeros(len(tokens_N), self.hidden_size, dtype=self.dtype, device=self.device)
        places = [start] * num_rows, [num_tokens] * num_rows, range(num_rows)
        return seconds_of(lambda: self.logits(self.read(tokens_N, states_NH, places)), self.device)

    @property
    def _windowed(self) -> Window | None:
        """The window of its attention, where the slots are longer."""
        assert self.cache is not None
        if self._window is None or self.cache.num_positions <= self._window:
            return None
        return Window(self._window, 0)
