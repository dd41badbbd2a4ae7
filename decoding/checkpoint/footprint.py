"""Footprint: the memory that a model takes on its device, known from its configuration before anything is loaded."""

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

GIB = 2**30


@dataclass(frozen=True)
class Footprint:
    """Numbers of bytes. What a forward needs for a moment depends on device and shapes, and is not included."""

    weights: int
    cache_per_token: int  # keys and values of one token in one slot, over all layers
    num_slots: int
    max_model_len: int

    @property
    def cache(self) -> int:
        """Bytes of keys and values of all slots, each with a spare position beyond its end."""
        return self.cache_per_token * self.num_slots * (self.max_model_len + 1)

    @property
    def total(self) -> int:
        return self.weights + self.cache

    def __str__(self) -> str:
        return (
            f"{self.total / GIB:.2f} GiB (weights {self.weights / GIB:.2f}, cache {self.cache / GIB:.2f} for "
            f"{self.num_slots} slots of {self.max_model_len} tokens)"
        )


def footprint_of(config: PretrainedConfig, dtype: str, num_slots: int, max_model_len: int) -> Footprint:
    """Return the footprint of a model if weights and cache have this dtype (float32, bfloat16, float16).

    The network is built without its weights, on torch's meta device.
    """
    kind: torch.dtype = getattr(torch, dtype)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config, dtype=kind, trust_remote_code=False)
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return Footprint(
        weights=sum(parameter.numel() for parameter in network.parameters()) * kind.itemsize,
        cache_per_token=2 * text.num_hidden_layers * heads * head_size * kind.itemsize,
        num_slots=num_slots,
        max_model_len=max_model_len,
    )
