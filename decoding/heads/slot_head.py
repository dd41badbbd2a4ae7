"""SlotHead: what every head has in common that drafts here, over a slot cache of its own.

Shapes: B rows, T tokens of each, P positions that are asked, N lines, D vocabulary of the head, V that of the target,
X any number of features, H hidden size of the head.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from copy import copy
from typing import Self

import torch

from decoding.cache.kv_cache import KVCache
from decoding.device import to_device
from decoding.families.rotary import RotaryTables
from decoding.fused.attention import Heads
from decoding.fused.decoder import FUSED_LINEARS
from decoding.fused.layers import Layer, Norm, operations_on
from decoding.fused.linear import source_of
from decoding.fused.live_weights import LiveWeights
from decoding.fused.packed_linear import pack_linears
from decoding.gpu.available import kernels_run_on
from decoding.heads.format.networks import HeadNetwork


class SlotHead(ABC):
    """A head whose weights are loaded, and its keys and values."""

    network: HeadNetwork
    block_tokens: int = 0  # most tokens of a draft that takes one forward; 0: each token takes a forward

    def __init__(self, network: HeadNetwork, target_ids_D: torch.Tensor | None, layer_ids: Seq[int]) -> None:
        """Take over a network whose weights are loaded, on its device.

        `target_ids_D` are the target's ids of the head's (None: the same ids); the features are what enters the layers
        `layer_ids` of the target.
        """
        config, layer_config = network.config, network.layer_config
        self.network = network
        self.layer_ids = tuple(layer_ids)
        network.eval().requires_grad_(False)
        weight = network.fc.weight
        self.device, self.dtype, self.hidden_size = weight.device, weight.dtype, config.hidden_size
        self.vocab_size = config.vocab_size
        self.max_positions: int | None = layer_config.max_position_embeddings
        self.cache: KVCache | None = None
        self._target_ids_D = None if target_ids_D is None else target_ids_D.to(self.device)
        self._embedding = source_of(network.embed_tokens)
        pack_linears(network.layers, FUSED_LINEARS)
        pack_linears(network)
        self._lm_head = network.lm_head
        self._is_on_gpu = kernels_run_on(self.device)
        self._heads = Heads.of(layer_config, network.layers[0])
        of_layers = (self.dtype, self._heads.head_size, config.hidden_size)
        self._kernels, self._norm = operations_on(self.device, *of_layers)
        self._layers = [Layer(layer, self._norm) for layer in network.layers]
        self._final_norm = Norm(network.norm, self._norm)
        self._rotary = RotaryTables(network.rotary_emb, self._layers[0].attention_norm.weight[None])
        self._window = config.sliding_window

    @property
    def takes_plans(self) -> bool:
        """Whether its forwards may be part of a recording, for rows that only the device knows."""
        return self._is_on_gpu

    @property
    def weights(self) -> LiveWeights:
        """The head's own weights, which all that share the head have."""
        return LiveWeights(self.network, self.network.lent, self._renew)

    @abstractmethod
    def _renew(self) -> None:
        """Compute anew, in place, what was made of weights that have been replaced: all that share the head have it."""

    def share(self) -> Self:
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

    @abstractmethod
    def guesses(self, tokens_BT: torch.Tensor, features_BTX: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """Return the likeliest tokens [B, P] behind some positions of rows, and those positions.

        The rows are read from their beginning, with the target's features of every token. The cache is lost.
        """

    @abstractmethod
    def seconds(self, num_rows: int, num_tokens: int) -> float:
        """Measure a forward of `num_rows` rows, as in a draft. The cache is overwritten."""

    def spread(self, logits_ND: torch.Tensor) -> torch.Tensor:
        """Return logits over the target's ids [N, V]; ids that the head lacks have -inf."""
        if self._target_ids_D is None:
            return logits_ND
        spread_NV = logits_ND.new_full((len(logits_ND), self.vocab_size), float("-inf"))
        return spread_NV.index_copy_(1, self._target_ids_D, logits_ND)

    def _slots(self, slots: Seq[int]) -> torch.Tensor | None:
        """Return the slots of a forward as a plan has them: None for the first ones, in order."""
        return None if list(slots) == list(range(len(slots))) else to_device(list(slots), self.device)
