"""DFlashHead: a DFlash, DFlash 2 or DSpark head over slots. Position i of its cache belongs to token i of the text.

Of a committed token the cache has keys and values that follow from the target's features alone; they are stored when
the features come, without attention. A draft of a row with L tokens is one forward over a block: its newest token, at
position L - 1, and masks behind it. The block sees the L - 1 positions before it and, unless a sliding layer is causal,
all of itself. Its keys and values are stored behind those, where the features of the same positions follow later:
the target always reads a position before the head may see it as part of the text.

A block has the size that it was trained with, however few of its tokens are wanted: each of them sees all masks.

Shapes: N tokens or rows of a forward, S places of a block, K places that predict, L layers, H hidden size, Q query
heads, G KV heads, D vocabulary of the head (or size of an attention head), V that of the target, R rank of the Markov
head, X any number of features.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import rms_norm

from decoding.cache.kv_cache import KVCache
from decoding.cache.plan import Packing, Plan
from decoding.device import seconds_of, to_device
from decoding.fused.attention import SlotAttention, TorchAttention, Window, attention_here
from decoding.fused.layers import Norm
from decoding.fused.linear import KernelLinear, embedded
from decoding.fused.packed_linear import PackedLinear, pack, plain_linear
from decoding.heads.format.networks import DFlashNetwork
from decoding.heads.slot_head import SlotHead
from decoding.network.target import timed_start

_PROBED_EVERY = 4  # positions: agreement is measured on some of them, since each takes a block


@dataclass(frozen=True)
class Block:
    """What a forward has left of some rows' blocks."""

    states_NKH: torch.Tensor  # of the places that predict
    logits_NKD: torch.Tensor  # of as many of them as are wanted, before the Markov head's bias
    carried_NR: torch.Tensor  # of a recurrent Markov head


class DFlashHead(SlotHead):
    """A head that drafts a block in one forward."""

    network: DFlashNetwork

    def __init__(self, network: DFlashNetwork, target_ids_D: torch.Tensor | None, layer_ids: Seq[int]) -> None:
        config = network.config
        assert config.block_size is not None
        assert config.mask_token_id is not None
        weight_XH, bias_X = _keys_and_values(network)
        super().__init__(network, target_ids_D, layer_ids)
        # One product gives the keys and values of all layers: a context is read without anything in between.
        self._context = pack(weight_XH, bias_X) or plain_linear(weight_XH, bias_X)
        self.block_size, self._mask_token_id = config.block_size, config.mask_token_id
        self._first = 0 if config.sample_from_anchor else 1  # the first place that predicts
        self.block_tokens = self.block_size - self._first
        self._hidden_norm = Norm(network.hidden_norm, self._norm)
        kinds = config.layer_config.get("layer_types") or [""] * len(network.layers)
        # A folder may name sliding layers and no window (Qwen 3 drops it unless `use_sliding_window`): they see all.
        self._slides = [kind == "sliding_attention" and self._window is not None for kind in kinds]
        self._sliding_is_causal, self._window_moves = not config.sliding_window_non_causal, config.window_moves

    def _renew(self) -> None:
        weight_XH, bias_X = _keys_and_values(self.network)
        if isinstance(self._context, KernelLinear | PackedLinear):
            self._context.replace(weight_XH, bias_X)
            return
        self._context.weight.copy_(weight_XH)
        if bias_X is not None and self._context.bias is not None:
            self._context.bias.copy_(bias_X)

    @property
    def says_chances(self) -> bool:
        """Whether the head states the chance that a token is accepted."""
        return self.network.confidence_head is not None

    def allocate(self, num_slots: int, num_positions: int) -> None:
        """Reserve a fresh cache of slots x positions, and room for a block behind the last one."""
        self.cache = KVCache(num_slots, num_positions + self.block_size)
        if self.takes_plans:  # our kernels read nothing that a row has not written
            self.cache = KVCache(num_slots, num_positions + self.block_size, self.device)

    @property
    def takes_plans(self) -> bool:
        return self._is_on_gpu and not self._cuts_blocks

    @torch.inference_mode()
    def insert(self, features_NH: torch.Tensor, starts: Seq[int], lengths: Seq[int], slots: Seq[int]) -> None:
        """Store the keys and values of tokens of the text, the rows' projected features end to end.

        Row b has `lengths[b]` of them from position `starts[b]` of slot `slots[b]` on.
        """
        assert self.cache is not None, "allocate() comes first"
        width = max(lengths)
        positions_BT = to_device(starts, self.device)[:, None] + torch.arange(width, device=self.device)
        packing = Packing.of(lengths, self.device, width, is_read_back=False)
        plan = self.cache.plan(self._slots(slots), positions_BT, max(starts) + width, packing)
        self.insert_planned(features_NH, plan)

    @torch.inference_mode()
    def insert_planned(self, features_NH: torch.Tensor, plan: Plan) -> None:
        """Store keys and values as `insert` does, at the places of a plan; nothing here waits for the device."""
        assert self.cache is not None, "allocate() comes first"
        self.cache.use(plan)
        num_tokens, num_layers, heads = len(features_NH), len(self._layers), self._heads
        found_NL2GD = self._context(features_NH).view(num_tokens, num_layers, 2, heads.num_kv_heads, heads.head_size)
        cos_PD, sin_PD = self._rotary.reach(self.cache.num_positions)
        turns_N = plan.positions_N.clamp(max=len(cos_PD) - 1)  # padding may be beyond the end
        cos_N1D, sin_N1D = cos_PD[turns_N][:, None], sin_PD[turns_N][:, None]
        for index, layer in enumerate(self._layers):
            keys_NGD, values_NGD = found_NL2GD[:, index].unbind(1)
            if layer.norms is not None:
                keys_NGD = rms_norm(keys_NGD, layer.norms.key.shape, layer.norms.key, layer.norms.epsilon)
            keys_NGD = keys_NGD * cos_N1D + keys_NGD.roll(heads.head_size // 2, -1) * sin_N1D
            self.cache.slot_layer(index).write(keys_NGD, values_NGD)

    @torch.inference_mode()
    def fill_in(self, newest_N: torch.Tensor, starts: Seq[int], slots: Seq[int], num_wanted: int) -> Block:
        """Fill in the block of each row, whose newest token is at position `starts[b]` of slot `slots[b]`.

        Logits are computed for the first `num_wanted` places that predict.
        """
        assert self.cache is not None, "allocate() comes first"
        positions_BS = to_device(starts, self.device)[:, None] + torch.arange(self.block_size, device=self.device)
        plan = self.cache.plan(self._slots(slots), positions_BS, max(starts) + self.block_size, None)
        return self.fill_in_planned(newest_N, plan, num_wanted)

    @torch.inference_mode()
    def fill_in_planned(self, newest_N: torch.Tensor, plan: Plan, num_wanted: int) -> Block:
        """Fill in blocks as `fill_in` does, at the places of a plan; on a GPU nothing here waits for the device."""
        assert self.cache is not None, "allocate() comes first"
        self.cache.use(plan)
        tokens_NS = newest_N.new_full((len(newest_N), self.block_size), self._mask_token_id)
        tokens_NS[:, 0] = newest_N
        hidden_XH = embedded(tokens_NS.flatten(), self._embedding) * self.network.config.input_embedding_scale
        for index, attention in enumerate(self._attentions(plan)):
            hidden_XH = self._through_layer(index, hidden_XH, attention)
        states_NSH = self._final_norm(hidden_XH).view(*tokens_NS.shape, -1)
        states_NKH = states_NSH[:, self._first :]
        logits_XD = self.network.finished(self._lm_head(states_NKH[:, :num_wanted].flatten(0, 1)))
        logits_NKD = logits_XD.view(len(newest_N), num_wanted, -1)
        return Block(states_NKH, logits_NKD, self._carried_into(states_NSH, newest_N))

    def _through_layer(self, index: int, hidden_XH: torch.Tensor, attention: SlotAttention) -> torch.Tensor:
        """Return the hidden states behind a layer, with its convolutions if it has any."""
        assert self.cache is not None
        layer, module, slots_of_layer = self._layers[index], self.network.layers[index], self.cache.slot_layer(index)

        def attended(qkv_XQ: torch.Tensor) -> torch.Tensor:
            found_XQ = attention(qkv_XQ, slots_of_layer, layer.norms, is_wanted=True)
            assert found_XQ is not None
            return found_XQ

        if not hasattr(module, "attention_conv"):
            return layer.finish(hidden_XH, attended(layer.project(hidden_XH)))
        around: Any = module
        normed_XH = layer.attention_norm(hidden_XH)
        hidden_XH = hidden_XH + around.attention_conv(normed_XH, lambda x_XH: layer.out(attended(layer.qkv(x_XH))))
        normed_XH = layer.mlp_norm(hidden_XH)
        hidden_XH = hidden_XH + around.mlp_conv(normed_XH, lambda x_XH: layer.down(layer.gated(x_XH)))
        return hidden_XH

    @torch.inference_mode()
    def next_logits(
        self, block: Block, place: int, before_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, Block]:
        """Return logits over the target's ids [N, 1, V] at a place of the rows' blocks, after the tokens before it.

        With them come the chances [N] that the tokens there are accepted (None: the head says none), and the block
        for the place behind. Places are asked in order.
        """
        states_NH, logits_ND = block.states_NKH[:, place], block.logits_NKD[:, place]
        markov, confidence, before_NR = self.network.markov_head, self.network.confidence_head, None
        if (selector := self.network.candidate_selector) is not None:
            logits_ND = selector.rescored(logits_ND, states_NH, before_N, self._target_ids_D)
        if markov is not None:
            before_NR = embedded(before_N, markov.markov_w1.weight)
            mixed_NR, carried_NR = markov.mix(states_NH, before_NR, block.carried_NR)
            logits_ND, block = logits_ND + markov.markov_w2(mixed_NR), replace(block, carried_NR=carried_NR)
        chances_N = None if confidence is None else confidence.chances(states_NH, before_NR)
        return self.spread(logits_ND)[:, None], chances_N, block

    @torch.inference_mode()
    def guesses(self, tokens_BT: torch.Tensor, features_BTX: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """Return the first token of a block at every fourth position."""
        num_rows, num_tokens = tokens_BT.shape
        lines_BTH = self.project(features_BTX.flatten(0, 1)).view(num_rows, num_tokens, -1)
        positions = list(range(1, num_tokens, _PROBED_EVERY))
        found: list[torch.Tensor] = []
        self.allocate(num_rows, num_tokens)
        try:
            for first, position in zip([0, *positions], positions, strict=False):
                new_NH, length = lines_BTH[:, first:position].flatten(0, 1), position - first
                self.insert(new_NH, [first] * num_rows, [length] * num_rows, range(num_rows))
                newest_B = tokens_BT[:, position]
                block = self.fill_in(newest_B, [position] * num_rows, range(num_rows), 1)
                found.append(self.next_logits(block, 0, newest_B)[0][:, 0].argmax(-1))
        finally:
            self.release()
        return torch.stack(found, dim=1), positions

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        """Measure the forward of `num_rows` rows' blocks. The cache is overwritten."""
        assert self.cache is not None
        start = timed_start(self.cache.num_positions, self.block_size)
        newest_N = torch.zeros(num_rows, dtype=torch.int64, device=self.device)
        fed = newest_N, [start] * num_rows, range(num_rows), self.block_tokens
        return seconds_of(lambda: self.fill_in(*fed), self.device)

    @property
    def _is_cut(self) -> bool:
        """Whether a slot is longer than what a sliding layer sees of it."""
        assert self.cache is not None
        num_behind = 0 if self._window_moves else self.block_size  # positions for which no window is cut
        return self._window is not None and self.cache.num_positions - num_behind > self._window

    @property
    def _cuts_blocks(self) -> bool:
        """Whether some layers' attention is torch's own.

        Our kernels' window goes on with each token's last position. Torch is asked where all tokens of a block see the
        same part of the text, each up to its own position, and where the windows go on and all see the whole block.
        """
        return self._is_cut and self._sliding_is_causal != self._window_moves

    def _attentions(self, plan: Plan) -> list[SlotAttention]:
        """Return the attention of each layer over the blocks of this plan."""
        assert self.cache is not None
        tables_PD = self._rotary.reach(self.cache.num_positions)
        here = self._heads, plan.positions_N, self.cache
        own_BS = plan.positions_N.view(-1, self.block_size)
        ends_BS = own_BS[:, -1:].repeat(1, self.block_size)
        all_seen = replace(plan, positions_BT=ends_BS, positions_N=ends_BS.flatten())
        of_kind: dict[bool, SlotAttention] = {}  # by whether a layer slides
        if not all(self._slides):
            of_kind[False] = attention_here(*here, all_seen, tables_PD, self._kernels)
        if any(self._slides):
            assert self._window is not None
            seen = plan if self._sliding_is_causal else all_seen
            if self._cuts_blocks:
                first_seen_BS = own_BS - self._window + 1 if self._window_moves else own_BS[:, :1] - self._window
                last_seen_BS = seen.positions_BT.minimum(own_BS + self._window - 1)  # of a window that is not causal
                of_kind[True] = TorchAttention(
                    self._heads,
                    replace(seen, positions_BT=last_seen_BS),
                    plan.positions_N,
                    tables_PD,
                    first_seen_BT=first_seen_BS,
                )
            else:
                num_last = self._window + self.block_size * (not self._window_moves)
                window = Window(num_last, 0) if self._is_cut else None
                of_kind[True] = attention_here(*here, seen, tables_PD, self._kernels, window)
        return [of_kind[slides] for slides in self._slides]

    def _carried_into(self, states_NSH: torch.Tensor, newest_N: torch.Tensor) -> torch.Tensor:
        """Return what a recurrent Markov head has at the first place that predicts."""
        markov = self.network.markov_head
        if markov is None or markov.kind != "rnn":
            return states_NSH.new_zeros(len(states_NSH), 0)
        before_NR = embedded(newest_N, markov.markov_w1.weight)
        carried_NR = torch.zeros_like(before_NR)
        for place in range(self._first):  # a place that does not predict is behind the same token as the next one
            carried_NR = markov.mix(states_NSH[:, place], before_NR, carried_NR)[1]
        return carried_NR


def _keys_and_values(network: DFlashNetwork) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weight and the bias of the keys and values of all layers, one below the other."""
    attentions: list[Any] = [layer.self_attn for layer in network.layers]
    products = [linear for attention in attentions for linear in (attention.k_proj, attention.v_proj)]
    biases = [linear.bias for linear in products if linear.bias is not None]
    weight_XH = torch.cat([linear.weight.detach() for linear in products])
    return weight_XH, torch.cat([bias.detach() for bias in biases]) if biases else None
