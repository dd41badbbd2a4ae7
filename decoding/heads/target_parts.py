"""TargetParts: what is around the layers of a target, which a head shares with it and a trainer needs beside the head.

The network is loaded as a target is, by transformers' own names and types, but none of its layers is read.

Shapes: N tokens, E hidden size, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from decoding.checkpoint.layer_subset import ends_class, layer_list, num_layers
from decoding.checkpoint.loading import DType, load_network
from decoding.checkpoint.supported import load_config, model_folder
from decoding.device import Device

_FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")
# Fields of models that change their logits behind the output layer, and the value with which they change nothing.
_CHANGES_OF_LOGITS = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}


@dataclass(frozen=True)
class TargetParts:
    """A target's embedding, final norm and output layer."""

    path: str
    config: PretrainedConfig  # of the whole target
    embed_tokens: nn.Embedding
    norm: nn.Module
    lm_head: nn.Linear

    @classmethod
    def load(cls, path: str, device: Device = "auto", dtype: DType = "auto") -> "TargetParts":
        """Read them from a folder or hub model. Raises ValueError, in one line, for a target whose parts are unknown.

        Device and type are chosen as for a whole target (`load_network`). The weights need no gradient.
        """
        path = model_folder(path)
        config = load_config(path)
        _refuse_changed_logits(config, path)
        network = load_ends(path, device, dtype)
        return cls(path, config, network.get_input_embeddings(), _final_norm(network), network.get_output_embeddings())

    def logits(self, hidden_NE: torch.Tensor) -> torch.Tensor:
        """Return the target's logits [N, V] by what leaves its last layer [N, E]; gradients flow through."""
        logits_NV: torch.Tensor = self.lm_head(self.norm(hidden_NE))
        return logits_NV


def load_ends(path: str, device: Device, dtype: DType) -> PreTrainedModel:
    """Load the network at `path` without its layers; raise a ValueError, in one line, if they cannot be left out."""
    path = model_folder(path)
    network, _ = load_network(path, device, dtype, ends_class(load_config(path)))
    return network.eval().requires_grad_(False)


def _refuse_changed_logits(config: PretrainedConfig, path: str) -> None:
    text_config = config.get_text_config()
    for field, unchanged in _CHANGES_OF_LOGITS.items():
        value = getattr(text_config, field, unchanged)
        if value not in (None, unchanged):
            raise ValueError(
                f"{path!r} ({config.model_type}) changes its logits behind the output layer ({field} is {value}), so "
                "they do not follow from its final norm and output layer alone; attach the whole target"
            )


def _final_norm(network: PreTrainedModel) -> nn.Module:
    """Return the norm that stands beside the list of layers."""
    layers = layer_list(network, num_layers(network.config))
    beside = next(module for module in network.modules() if any(child is layers for child in module.children()))
    named = [module for name, module in beside.named_children() if name in _FINAL_NORMS]
    if len(named) != 1:
        names = ", ".join(name for name, _ in beside.named_children())
        raise ValueError(
            f"{type(network).__name__} has no final norm of a known name beside its layers (it has {names}); attach "
            "the whole target"
        )
    norm: nn.Module = named[0]
    return norm
