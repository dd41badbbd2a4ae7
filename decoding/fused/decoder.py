"""FusedDecoder: the forward of a decoder in few, large operations, over the network's own weights.

Eager model code spends half a millisecond a layer on small operations. Here queries, keys and values come from one
product; sums and activations are done in the products before them; only the attention handles rows (everything else is
one line a token, so ragged rows cost nothing); and unused results are not computed: a prefill has no logits, and of its
last layer only keys and values.

What differs between families is data (`decoding/families/family.py`). `fits` decides by structure,
`decoding/network/probe.py` by measurement; other networks run transformers' own code.

Shapes: B rows, N tokens in all, M tokens whose logits are wanted, E hidden size, X any number of features, V
vocabulary, P positions, D head size.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn.functional import embedding
from transformers import PreTrainedModel

from decoding.cache.features import Features
from decoding.cache.kv_cache import KVCache
from decoding.cache.plan import Plan
from decoding.checkpoint.layer_subset import LayerRange
from decoding.cpu.library import cache_folder
from decoding.families.description import described
from decoding.families.rotary import RotaryTables
from decoding.fused.attention import Heads, KernelAttention, Window, attention_here
from decoding.fused.kernels import TableAddresses
from decoding.fused.layers import KernelLayers, Layer, Norm, operations_on
from decoding.fused.linear import KernelLinear
from decoding.fused.packed_linear import InvariantLinear
from decoding.gpu.available import kernels_run_on
from decoding.ranks.shares import part_of

NOT_FUSED = "transformers' code runs in place of fused layers"  # how a `Target.fallback` begins
FUSED_LINEARS = (("q_proj", "k_proj", "v_proj"),)  # one product gives all of them
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
        config, description = model.config, described(model)
        assert description is not None, "a network that fits has a description"
        family, self._description = description.family, description
        self._range = layers or LayerRange.whole(len(network.layers))
        own = network.layers[self._range.first : self._range.end]
        a_norm = getattr(own[0], next(filter(None, family.norms)))
        self._like_1E = a_norm.weight[None]  # has the dtype, the device and the size of hidden states
        self._embed: Any = network.embed_tokens if self._range.has_embedding else None
        if type(self._embed) is torch.nn.Embedding:  # the call of a module takes longer
            self._embed = partial(embedding, weight=self._embed.weight)
        self._heads = Heads.of(config, own[0])
        tables = partial(RotaryTables, like=self._like_1E, head_size=self._heads.head_size)
        turns = {"": network.rotary_emb, None: None}
        self._rotaries = [
            tables(
                turns[kind] if kind in turns else partial(network.rotary_emb, layer_type=kind),
                pairs=family.pairs,
            )
            for kind in description.ropes
        ]
        if not description.is_as_llama:
            half = 1 if family.pairs != "halves" else max(each.num_turned for each in self._rotaries) // 2
            scale = float(own[0].self_attn.scaling)
            self._heads = replace(self._heads, half=half, scale=scale, softcap=description.attention_softcap)
        self._tables: dict[int, TableAddresses] = {}  # by the number of positions that they reach
        self.window: Window | None = None  # what a query sees of its row, on a GPU; None: all before it
        self.is_on_gpu = kernels_run_on(self._like_1E.device)
        # None: torch's own operations.
        of_layers = (self._like_1E.dtype, self._heads.head_size, config.hidden_size)
        self.kernels, norm = operations_on(self._like_1E.device, *of_layers)
        self._fewest_lines = _FEWEST_LINES_ON_CPU if self._like_1E.device.type == "cpu" and not self.is_on_gpu else 1
        self._final_norm = Norm(network.norm, norm, family)
        self._head = model.get_output_embeddings() if self._range.has_head else None
        make = partial(Layer, gate_is_gelu=description.gate_is_gelu, multiplier=description.residual_multiplier)
        kinds = description.kinds[self._range.first : self._range.end]
        self._layers = [make(layer, norm, family, kind=kind) for layer, kind in zip(own, kinds, strict=True)]
        if self._like_1E.device.type == "cuda" and self.is_on_gpu:
            from decoding.gpu.tile_clock import choose_tiles  # Triton is only where the kernels run

            choose_tiles(self.measured, cache_folder())
        function = None if self.kernels is None else self.kernels.layers_function
        self._at_once: KernelLayers | None = None
        if function is not None and all(layer.is_ours for layer in self._layers):
            self._at_once = KernelLayers(function, self._layers, self._heads, self._range.first, self._like_1E.dtype)

    @property
    def measured(self) -> list[tuple[InvariantLinear, InvariantLinear | None]]:
        """The products whose tiles are chosen by the clock on a GPU, each with its gate."""
        of_head = [(self._head, None)] if isinstance(self._head, InvariantLinear) else []
        return [product for layer in self._layers for product in layer.measured] + of_head

    def before_kernels(self, begin: Callable[[], None]) -> bool:
        """Call `begin` before the kernels next run all layers in one call; return False if there is no such call."""
        if self._at_once is not None:
            self._at_once.before_call = begin
        return self._at_once is not None

    def follow_weights(self) -> None:
        """Take the weights where they are now."""
        if self._at_once is not None:
            self._at_once.forget()

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Tell whether each parameter of the network is used here, and its configuration asks for nothing else."""
        description = described(model)
        return description is not None and (description.is_as_llama or not kernels_run_on(model.device))

    @property
    def num_bytes_a_token(self) -> int:
        """The bytes of a token's keys and values in all layers."""
        numbers_of_a_layer = 2 * self._heads.num_kv_heads * self._heads.head_size
        num_bytes: int = len(self._layers) * numbers_of_a_layer * self._like_1E.element_size()
        return num_bytes

    @property
    def attends_in_place(self) -> bool:
        """Whether ragged rows are read where they stand: only torch's own attention needs a rectangle of them."""
        return self.is_on_gpu or self.kernels is not None

    @property
    def is_batch_invariant(self) -> bool:
        """Whether a token's logits are the same, bit for bit, in any batch: true if on CPU only our code runs."""
        are_layers = self.kernels is not None and all(layer.is_batch_invariant for layer in self._layers)
        return are_layers and (self._head is None or isinstance(part_of(self._head), KernelLinear))

    def forward(
        self,
        fed_N: torch.Tensor,
        positions_N: torch.Tensor,
        wanted_M: torch.Tensor,
        cache: KVCache,
        plan: Plan,
        features: Features | None = None,
    ) -> torch.Tensor:
        """Return logits [M, V] after the wanted tokens; the keys and values of all N are stored as planned.

        `fed_N` are tokens, or hidden states [N, E]. Without a head all hidden states [N, E] are returned. The stream of
        all N is left in `features`, and projected.
        """
        hidden_NE = self.hidden(fed_N, positions_N, wanted_M.shape[0], cache, plan, features)
        return hidden_NE if self._head is None else self.logits(hidden_NE[wanted_M])

    def logits(self, hidden_ME: torch.Tensor) -> torch.Tensor:
        """Return the logits [M, V] of hidden states that left the last layer."""
        assert self._head is not None, "this part of the network has no head"
        if not hidden_ME.shape[0]:
            return hidden_ME.new_zeros(0, self._head.out_features)
        logits_MV: torch.Tensor = self._head.forward(self._final_norm(hidden_ME))  # its hook is for transformers' code
        scale, cap = self._description.logits_scale, self._description.logits_softcap
        if scale != 1.0:
            logits_MV = logits_MV.mul_(scale)
        if cap and self.kernels is not None:
            self.kernels.softcap(logits_MV, cap)
        elif cap:
            logits_MV = (logits_MV / cap).tanh_().mul_(cap)
        return logits_MV

    def hidden(
        self,
        fed_N: torch.Tensor,
        positions_N: torch.Tensor,
        num_wanted: int,
        cache: KVCache,
        plan: Plan,
        features: Features | None = None,
    ) -> torch.Tensor:
        """Do what `forward` does, but return what leaves the last layer, [N, E], of which `logits` makes logits.

        It is not computed if neither logits nor features need it.
        """
        num_tokens = fed_N.shape[0]
        is_last_read = features is not None and features.wants(self._range.end)
        is_last_wanted = self._head is None or num_wanted > 0 or is_last_read
        tables = self._tables_of(cache)
        if self._at_once is not None:
            hidden_NE = self._embedded(fed_N)
            assert self.kernels is not None, "they run all layers"
            forward = KernelAttention(self.kernels, self._heads, positions_N, cache, plan, tables)
            self._at_once.run(hidden_NE, forward, cache, is_wanted=is_last_wanted, features=features)
            self._finish(features, hidden_NE)
            return hidden_NE
        here = self._heads, positions_N, cache, plan, tables.pairs[0], self.kernels, self.window
        attention = attention_here(*here, other_tables=tables.pairs[1:])
        if num_tokens < self._fewest_lines:
            fed_N = torch.cat((fed_N, fed_N[-1:].expand(self._fewest_lines - num_tokens, *fed_N.shape[1:])))
        hidden_NE, normed_NE = self._embedded(fed_N), None
        next_norms = [*(layer.attention_norm for layer in self._layers[1:]), None]
        for index, (layer, next_norm) in enumerate(zip(self._layers, next_norms, strict=True), self._range.first):
            if features is not None:
                features.keep(index, hidden_NE[:num_tokens])
            is_wanted = index < self._range.end - 1 or is_last_wanted
            fed = layer.project(hidden_NE, normed_NE), cache.slot_layer(index), layer.norms
            found_NX = attention(*fed, is_wanted=is_wanted, kind=layer.kind)
            if found_NX is None:
                break
            hidden_NE, normed_NE = layer.finish_and_norm(hidden_NE, found_NX, next_norm)
        self._finish(features, hidden_NE[:num_tokens])
        return hidden_NE[:num_tokens]

    def _tables_of(self, cache: KVCache) -> TableAddresses:
        """Return tables that reach as far as a cache; earlier ones stay as they were, for what still reads them."""
        if cache.num_positions not in self._tables:
            self._tables[cache.num_positions] = TableAddresses(
                [each.reach(cache.num_positions) for each in self._rotaries]
            )
        return self._tables[cache.num_positions]

    def _finish(self, features: Features | None, hidden_NE: torch.Tensor) -> None:
        if features is not None:
            features.keep(self._range.end, hidden_NE)
            features.project()

    def _embedded(self, fed_N: torch.Tensor) -> torch.Tensor:
        """Return hidden states in memory of our own, since the layers may write there."""
        if self._embed is None:
            return fed_N.clone()
        embedded_NE: torch.Tensor = self._embed(fed_N)
        scale = self._description.embedding_scale
        return embedded_NE if scale == 1.0 else embedded_NE.mul_(scale)
