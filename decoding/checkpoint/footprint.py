"""Footprint: the memory that a model takes on its device, known from its configuration before anything is loaded."""

from copy import deepcopy
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from decoding.checkpoint.fp8_format import fp8_format, without_format
from decoding.checkpoint.fp8_network import fp8_class
from decoding.checkpoint.layer_subset import whole_class
from decoding.fp8 import exact
from decoding.fp8.linear import weights_of

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

    FP8 weights stay FP8. The network is built without its weights, on torch's meta device. Raises a ValueError for a
    checkpoint that is quantized in another way.
    """
    kind: torch.dtype = getattr(torch, dtype)
    return Footprint(
        weights=sum(weight.numel() * weight.element_size() for weight in weights_of(_empty_network(config, kind))),
        cache_per_token=_cache_per_token(config, kind),
        num_slots=num_slots,
        max_model_len=max_model_len,
    )


def cache_of(config: PretrainedConfig, dtype: str, num_slots: int, max_model_len: int) -> int:
    """Return the bytes of keys and values of a model, however its weights are stored."""
    return Footprint(0, _cache_per_token(config, getattr(torch, dtype)), num_slots, max_model_len).cache


def _cache_per_token(config: PretrainedConfig, dtype: torch.dtype) -> int:
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * heads * head_size * dtype.itemsize)


def _empty_network(config: PretrainedConfig, dtype: torch.dtype) -> torch.nn.Module:
    """Return a network whose tensors have shapes and dtypes, and no numbers."""
    with torch.device("meta"):
        if (form := fp8_format(config)) is None:
            network = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        else:
            network = fp8_class(whole_class(config), form, exact)(without_format(deepcopy(config)))
    for parameter in network.parameters():
        parameter.data = parameter.data.to(dtype)
    return network  # type: ignore[no-any-return]
