"""The network of a head with all its weights: what its folder lacks is lent by its target."""

from collections.abc import Callable

import torch

from decoding.heads.format.folder import Head
from decoding.heads.format.vocabulary import target_ids
from decoding.heads.networks.dflash_network import DFlashNetwork
from decoding.heads.networks.eagle3_network import Eagle3Network

_LENT = ("embed_tokens.weight", "lm_head.weight")
_OF_VOCABULARY = ("d2t", "t2d")  # tensors that are no weights
Lender = Callable[[], tuple[torch.Tensor, torch.Tensor]]  # of the target's embedding and its output layer's weight


def make_network(head: Head, lender: Lender, device: torch.device, dtype: torch.dtype) -> Eagle3Network | DFlashNetwork:
    """Return the network of the head's kind; its own weights want a gradient, lent ones do not.

    The lender is asked only if the head lacks something. Raises ValueError if what it lends has another shape.
    """
    with torch.device("meta"):
        network = Eagle3Network(head.config) if head.config.kind == "eagle3" else DFlashNetwork(head.config)
    weights = {name: tensor for name, tensor in head.tensors.items() if name not in _OF_VOCABULARY}
    lacking = [name for name in _LENT if name not in weights]
    if lacking:
        lent = dict(zip(_LENT, lender(), strict=True))
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


def target_ids_of(head: Head) -> torch.Tensor | None:
    """Return the target's ids of the head's tokens; None if they are the same ids."""
    if "d2t" not in head.tensors:
        return None
    return target_ids(head.tensors["d2t"], head.config.vocab_size)
