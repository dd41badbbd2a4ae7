"""MiniMaxRows: the slot cache of MiniMax, whose code asks for a cache of its own class and for states by other names."""

import torch
from transformers.models.minimax.modeling_minimax import MiniMaxCache

from decoding.cache.kv_cache import KVCache
from decoding.cache.row_states import StateName


class MiniMaxRows(KVCache, MiniMaxCache):  # type: ignore[misc]
    """Slots x positions of keys and values, and the states of linear attention."""

    def __len__(self) -> int:
        return len(self.layers)

    def get_linear_cache(self, layer_idx: int) -> torch.Tensor | None:
        return self._states.get(StateName(layer_idx, "linear"))

    def set_linear_cache(self, layer_idx: int, linear_cache: torch.Tensor) -> None:
        self._states.put(StateName(layer_idx, "linear"), linear_cache)
