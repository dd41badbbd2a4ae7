"""Layer hooks: how the residual stream is read while transformers' own code runs.

Shapes: B rows, T tokens, N tokens in all, E hidden size.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from decoding.cache.features import Features
from decoding.checkpoint.layer_subset import CannotCutError, layer_list, num_layers


def layers_to_read(network: PreTrainedModel) -> torch.nn.ModuleList:
    """Return the decoder layers of a network; raise a ValueError if they cannot be told from others."""
    try:
        return layer_list(network, num_layers(network.config))
    except CannotCutError:
        raise ValueError(
            f"{type(network).__name__} has no single list of {num_layers(network.config)} layers, so its hidden states "
            "cannot be handed to a draft; use a draft that reads tokens alone"
        ) from None


@contextmanager
def layer_hooks(network: PreTrainedModel, features: Features | None) -> Iterator[None]:
    """Fill the features with what enters the layers that are read; there are hooks for this one forward only.

    What leaves the last layer is what enters the final norm, whose name differs from model to model.
    """
    if features is None:
        yield
        return
    layers = layers_to_read(network)
    with ExitStack() as hooks:
        for layer_id in features.tap.layer_ids:
            if layer_id < len(layers):
                enter = partial(_enter, features, layer_id)
                hooks.callback(layers[layer_id].register_forward_pre_hook(enter, with_kwargs=True).remove)
            else:
                hooks.callback(layers[-1].register_forward_hook(partial(_leave, features, layer_id)).remove)
        yield


def _enter(
    features: Features, layer_id: int, layer: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    _keep(features, layer_id, args[0] if args else kwargs["hidden_states"])


def _leave(features: Features, layer_id: int, layer: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
    _keep(features, layer_id, output[0] if isinstance(output, tuple) else output)


def _keep(features: Features, layer_id: int, hidden_BTE: torch.Tensor) -> None:
    if hidden_BTE.dim() != 3:
        raise ValueError(
            f"the layers of this target pass on hidden states of shape {list(hidden_BTE.shape)}, which no draft reads; "
            "use a draft that reads tokens alone"
        )
    features.keep(layer_id, hidden_BTE.flatten(0, 1))
