"""What is around a target's layers: a head shares it with its target, and a trainer needs it beside the head.

The network is loaded as a target is, by transformers' own names and types, but none of its layers is read.

Shapes: N tokens, E hidden size, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from decoding.checkpoint.layer_subset import ends_class, layer_list, num_layers
from decoding.checkpoint.loading import DType, load_network
from decoding.checkpoint.supported import load_config, model_folder
from decoding.device import Device
from decoding.heads.fit import LENT, fitting_config
from decoding.heads.format.folder import Head
from decoding.heads.format.head_config import HeadConfig
from decoding.heads.format.networks import DFlashNetwork, Eagle3Network, network_of
from decoding.heads.format.tensors import OF_VOCABULARY

Lender = Callable[[], tuple[torch.Tensor, torch.Tensor]]  # of the target's embedding and its output layer's weight
_FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "norm_f")
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
        return cls(path, config, network.get_input_embeddings(), final_norm(network), network.get_output_embeddings())

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


def final_norm(network: PreTrainedModel) -> nn.Module:
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


@dataclass(frozen=True)
class TrainableHead:
    """A head's network, whole, and what turns the target's last hidden states into logits."""

    network: Eagle3Network | DFlashNetwork  # what its folder lacks is the target's own tensor, without a gradient
    target_ids_D: torch.Tensor | None  # the target's ids of the head's D tokens; None: the same ids
    config: HeadConfig  # with the layers of this target that the head reads, as its folder says them
    target: TargetParts

    @classmethod
    def load(cls, path: str, head: Head, target_path: str, device: Device, dtype: DType) -> "TrainableHead":
        """Put the head that was read from `path` beside a target's parts; no layer of the target is read.

        Raises ValueError, in one line, for a head of another target, and for a target whose parts are not known.
        """
        config = fitting_config(path, load_config(model_folder(target_path)), target_path)
        parts = TargetParts.load(target_path, device, dtype)
        embedding, output = parts.embed_tokens.weight, parts.lm_head.weight
        network = make_network(head, lambda: (embedding, output), output.device, output.dtype)
        return cls(network, head.target_ids, config, parts)


def make_network(head: Head, lender: Lender, device: torch.device, dtype: torch.dtype) -> Eagle3Network | DFlashNetwork:
    """Return the network of the head's kind; its own weights want a gradient, lent ones do not.

    The lender is asked only if the head lacks something. Raises ValueError if what it lends has another shape.
    """
    network = network_of(head.config)
    weights = {name: tensor for name, tensor in head.tensors.items() if name not in OF_VOCABULARY}
    lacking = [name for name in LENT if name not in weights]
    if lacking:
        lent = dict(zip(LENT, lender(), strict=True))
        for name in lacking:
            shared, expected = lent[name], network.get_parameter(name)
            if shared.shape != expected.shape:
                raise ValueError(
                    f"the head lacks {name!r}, and that of its target has the shape {list(shared.shape)} in place of "
                    f"{list(expected.shape)}; use a head that has its own"
                )
            weights[name] = shared
    weights = {name: tensor.to(device, dtype) for name, tensor in weights.items()}
    network.load_state_dict(weights, assign=True)
    for name in lacking:
        network.get_parameter(name).requires_grad_(False)
    network.lent = tuple(lacking)
    network.rotary_emb = type(network.rotary_emb)(network.layer_config).to(device)
    return network
