"""The layers of a network that is laid out: described for a file, and put into a network that has no weights yet."""

from typing import Any

import torch

from decoding.fused.coded_linear import CodedLinear
from decoding.fused.linear import KernelLinear, PackedEmbedding
from decoding.fused.packed_linear import LinearSlice, packed_layers
from decoding.kept.file import KeptFile, Parts

_KINDS: dict[str, type[KernelLinear]] = {kind.__name__: kind for kind in (KernelLinear, CodedLinear)}


def described(network: torch.nn.Module, parts: Parts) -> dict[str, Any]:
    """Describe the packed layers of a network, where they stand, and its other tensors, all of which become parts."""
    layers = packed_layers(network)
    number: dict[torch.nn.Module, int] = {layer: index for index, layer in enumerate(layers)}
    places: list[tuple[Any, ...]] = []
    for name, module in network.named_modules():
        if isinstance(module, KernelLinear):
            places.append((name, "layer", number[module]))
        elif isinstance(module, LinearSlice):
            places.append((name, "slice", number[module.fused], module.first, module.last))
        elif isinstance(module, PackedEmbedding):
            scale = None if module.scale is None else parts.add(module.scale)
            places.append((name, "embedding", number[module.layer], scale))
    return {
        "layers": [
            {
                "kind": type(layer).__name__,
                "numbers": layer.numbers,
                "packed": parts.add(layer.packed),
                "bias": None if layer.bias is None else parts.add(layer.bias),
            }
            for layer in layers
        ],
        "places": places,
        "tensors": {name: parts.add(tensor) for name, tensor in network.state_dict().items()},
    }


def put_into(network: torch.nn.Module, kept: KeptFile) -> None:
    """Put the packed layers of a file into the places of a network's own."""
    layers = []
    for said in kept.description["layers"]:
        bias = None if said["bias"] is None else kept.tensor(said["bias"])
        layers.append(_KINDS[said["kind"]].over(kept.tensor(said["packed"]), bias, said["numbers"]))
        layers[-1].is_lent = kept.is_shared
    for name, kind, number, *more in kept.description["places"]:
        module: torch.nn.Module = layers[number]
        if kind == "slice":
            module = LinearSlice(module, *more)
        elif kind == "embedding":
            module = PackedEmbedding(layers[number], None if more[0] is None else kept.tensor(more[0]))
        parent, _, own = name.rpartition(".")
        setattr(network.get_submodule(parent), own, module)


def lend(network: torch.nn.Module, kept: KeptFile) -> None:
    """Let a network have its weights, which were written into this file, in the file's memory alone."""
    for layer, said in zip(packed_layers(network), kept.description["layers"], strict=True):
        layer.move(kept.tensor(said["packed"]), is_lent=True)
    for name, tensor in network.state_dict(keep_vars=True).items():
        tensor.data = kept.tensor(kept.description["tensors"][name])
