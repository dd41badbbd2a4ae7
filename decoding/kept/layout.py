"""The layers of a network that is laid out: described for a file, and put into a network that has no weights yet."""

from typing import Any

import torch

from decoding.cpu.huge_pages import advise
from decoding.fused.coded_linear import CodedLinear
from decoding.fused.linear import KernelLinear, PackedEmbedding
from decoding.fused.packed_linear import LinearSlice, packed_layers
from decoding.kept.file import Content

_KINDS: dict[str, type[KernelLinear]] = {kind.__name__: kind for kind in (KernelLinear, CodedLinear)}
# What stands in the places of a network's own layers, and shows all of a packed one, some lines of it, or asked ones.
_SHOWN: dict[str, Any] = {"all": lambda layer: layer, "slice": LinearSlice, "embedding": PackedEmbedding}


def described(network: torch.nn.Module) -> Content:
    """Return the packed layers of a network, where they stand, and its other tensors."""
    layers = packed_layers(network)
    number: dict[torch.nn.Module, int] = {layer: index for index, layer in enumerate(layers)}
    places: list[tuple[Any, ...]] = []
    for name, module in network.named_modules():
        if isinstance(module, KernelLinear):
            places.append((name, "all", number[module]))
        elif isinstance(module, LinearSlice):
            places.append((name, "slice", number[module.fused], module.first, module.last))
        elif isinstance(module, PackedEmbedding):
            places.append((name, "embedding", number[module.layer], module.scale))
    states = [{"kind": type(layer).__name__, **layer.state()} for layer in layers]
    return {"layers": states, "places": places, "tensors": dict(network.state_dict())}


def put_into(network: torch.nn.Module, content: Content, *, is_lent: bool) -> None:
    """Put the packed layers of a file into the places of a network's own."""
    layers = [_KINDS[state["kind"]].of(state, is_lent=is_lent) for state in content["layers"]]
    for name, shown, number, *more in content["places"]:
        parent, _, own = name.rpartition(".")
        setattr(network.get_submodule(parent), own, _SHOWN[shown](layers[number], *more))


def has_all_of(content: Content, network: torch.nn.Module) -> bool:
    """Tell whether a file has the weights of a network, bit for bit."""
    for layer, state in zip(packed_layers(network), content["layers"], strict=True):
        own, kept = (each.flatten().view(torch.int64) for each in (layer.state()["packed"], state["packed"]))
        same_bias = layer.bias is None or torch.equal(layer.bias, state["bias"])
        if not same_bias or not torch.equal(own, kept):  # words are compared seven times as fast as bytes
            return False
        advise(kept, "MADV_DONTNEED")
    return all(torch.equal(tensor, content["tensors"][name]) for name, tensor in network.state_dict().items())


def lend(network: torch.nn.Module, content: Content) -> None:
    """Let a network have the weights that were written into a file in the memory of the file alone."""
    for layer, state in zip(packed_layers(network), content["layers"], strict=True):
        layer.move(state["packed"], is_lent=True)
    for name, tensor in network.state_dict(keep_vars=True).items():
        tensor.data = content["tensors"][name]
