"""LiveWeights: the weights of a network in use, under the names of its checkpoint, read and replaced where they are.

Once a network is laid out for this machine, a weight may be packed, or side by side with others in one product. New
numbers are written into the same memory, since kernels and recordings have its addresses. What was laid out anew (a
packed weight of oneDNN) is laid out again. A weight in codes becomes one of float32 numbers, and moves.

Shapes: O outputs, I inputs.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from decoding.cpu.huge_pages import HugePages
from decoding.fp8.linear import Fp8Linear
from decoding.fused.linear import KernelLinear, PackedEmbedding
from decoding.fused.packed_linear import LinearSlice, PackedLinear, packed_among

_EXACT = (torch.float8_e4m3fn,)  # types of weights that another type cannot be rounded to: their scales belong to them


@dataclass(frozen=True)
class _Place:
    """A weight in use, and how it is read."""

    shape: torch.Size
    dtype: torch.dtype
    read: Callable[[], torch.Tensor]


class LiveWeights:
    """The weights of one network. Its tensors are those that a checkpoint fills, lent ones not among them."""

    def __init__(
        self, network: torch.nn.Module, lent: Collection[str] = (), follow: Callable[[], None] | None = None
    ) -> None:
        """Leave the tensors named `lent` alone: they are another network's. `follow` renews what was made of others."""
        self._network, self._lent, self._follow = network, frozenset(lent), follow
        self._tied: dict[str, str] = dict(getattr(network, "all_tied_weights_keys", None) or {})

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Return a copy of all weights in the memory of the CPU, as `replace` takes it."""
        places = self._places()
        tied = {name for name, other in self._tied.items() if other in places}
        return {name: place.read().detach().to("cpu", copy=True) for name, place in places.items() if name not in tied}

    def check(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return these weights as `put` takes them, on the CPU in the types of those in use.

        Raises ValueError, with a message that begins with a verb, if names or shapes are not those of this network, and
        for values that are not finite numbers in its types.
        """
        places, given = self._places(), dict(weights)
        for tied in self._tied.items():  # a checkpoint has one of the two
            for lacking, present in (tied, tied[::-1]):
                if lacking in places and lacking not in given and present in given:
                    given[lacking] = given[present]
        if missing := sorted(places.keys() - given.keys()):
            raise ValueError(f"lacks {len(missing)} tensors of the draft in use, first {missing[0]!r}")
        if surplus := sorted(given.keys() - places.keys()):
            raise ValueError(
                f"has {len(surplus)} tensors for which the draft in use has no place, first {surplus[0]!r}"
            )
        ready = {}
        for name, place in places.items():
            tensor = given[name]
            if tensor.shape != place.shape:
                raise ValueError(
                    f"has {name!r} of shape {list(tensor.shape)}, and in the draft in use it is {list(place.shape)}"
                )
            if tensor.dtype != place.dtype and (place.dtype in _EXACT or tensor.dtype in _EXACT):
                raise ValueError(f"has {name!r} in {tensor.dtype}, and the draft in use has it in {place.dtype}")
            ready[name] = tensor.detach().to("cpu", place.dtype)
            if place.dtype.is_floating_point and not ready[name].float().isfinite().all():
                raise ValueError(f"has values in {name!r} that are not finite numbers in {place.dtype}")
        for name, other in self._tied.items():
            if name in ready and other in ready and not torch.equal(ready[name], ready[other]):
                raise ValueError(f"has different numbers in {name!r} and {other!r}, which are one weight in use")
        return ready

    @torch.inference_mode()
    def put(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Write weights that `check` has returned in the place of those in use; what a file lends is copied before."""
        replaced = [module for name, module in _modules(self._network) if f"{name}weight" not in self._lent]
        lent = [layer for layer in packed_among(replaced) if layer.is_lent]
        memory = HugePages(sum(layer.state()["packed"].nbytes for layer in lent) * 33 // 32)
        for layer in lent:
            layer.move(memory.copy(layer.state()["packed"]), is_lent=False)
        slices: dict[int, list[tuple[str, LinearSlice]]] = {}
        for name, module in _modules(self._network):
            if isinstance(module, LinearSlice):
                slices.setdefault(id(module.fused), []).append((name, module))
            elif isinstance(module, KernelLinear | PackedLinear | PackedEmbedding):
                if f"{name}weight" not in self._lent:
                    module.replace(weights[f"{name}weight"], weights.get(f"{name}bias"))
            else:
                for own, tensor in _own_tensors(module):
                    if name + own not in self._lent:
                        tensor.copy_(weights[name + own])
        for parts in slices.values():
            _put_together(parts, weights)
        if self._follow is not None:
            self._follow()

    def _places(self) -> dict[str, _Place]:
        places: dict[str, _Place] = {}
        for name, module in _modules(self._network):
            for own, place in _places_of(module):
                places[name + own] = place
        return {name: place for name, place in places.items() if name not in self._lent}


def _modules(network: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the modules of a network, with what the names of their tensors begin with."""
    for name, module in network.named_modules():
        yield (f"{name}." if name else ""), module


def _own_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a module itself that a checkpoint fills."""
    yield from ((name, tensor) for name, tensor in module._parameters.items() if tensor is not None)
    for name, tensor in module._buffers.items():
        if tensor is not None and name not in module._non_persistent_buffers_set:
            yield name, tensor


def _places_of(module: Any) -> Iterator[tuple[str, _Place]]:
    if isinstance(module, LinearSlice | KernelLinear | PackedLinear | PackedEmbedding):
        for own in ("weight", "bias", "scales"):
            if own == "weight" or getattr(module, own, None) is not None:
                fused: Any = getattr(module, "fused", None)
                yield fused.scaling.name if own == "scales" else own, _place(partial(getattr, module, own))
        return
    for name, tensor in _own_tensors(module):
        yield name, _place(lambda tensor=tensor: tensor)  # type: ignore[misc]


def _place(read: Callable[[], Any]) -> _Place:
    tensor = read()
    return _Place(tensor.shape, tensor.dtype, read)


def _put_together(parts: list[tuple[str, LinearSlice]], weights: Mapping[str, torch.Tensor]) -> None:
    """Write the weights of slices into the one layer that computes them."""
    parts = sorted(parts, key=lambda part: part[1].first)
    fused: Any = parts[0][1].fused

    def joined(own: str) -> torch.Tensor:
        return torch.cat([weights[name + own] for name, _ in parts])

    bias = None if fused.bias is None else joined("bias")
    if isinstance(fused, KernelLinear | PackedLinear):
        fused.replace(joined("weight"), bias)
        return
    fused.weight.copy_(joined("weight"))
    if isinstance(fused, Fp8Linear):
        fused.scales.copy_(joined(fused.scaling.name))
    if bias is not None:
        fused.bias.copy_(bias)
