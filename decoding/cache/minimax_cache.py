"""MiniMaxRows: the slot cache of MiniMax, whose code takes only a cache of its own class."""

from transformers.models.minimax.modeling_minimax import MiniMaxCache

from decoding.cache.kv_cache import KVCache


class MiniMaxRows(KVCache, MiniMaxCache):  # type: ignore[misc]
    """Slots x positions of keys and values, and the states of linear attention."""

    def __len__(self) -> int:
        return len(self.layers)
