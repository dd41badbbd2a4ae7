"""PackedLinear: a linear layer whose weight is stored in oneDNN's own order.

On CPU oneDNN reorders the weight of a plain `nn.Linear` in every call (bfloat16), or multiplies few rows with a kernel
made for many (float32). With a weight reordered once at load, a pass over one to sixteen rows takes half to two thirds
of the time; `benchmarks/linears.py` prints it.

Shapes: N rows, I inputs, O outputs.
"""

from collections.abc import Sequence as Seq
from typing import Any

import torch

from decoding.codes.left_weight import identity_of
from decoding.cpu.huge_pages import HugePages
from decoding.device import give_back_freed_memory
from decoding.fp8.linear import Fp8Linear
from decoding.fused.coded_linear import CodedLinear, coded_layer
from decoding.fused.linear import KernelLinear, PackedEmbedding, kernel_function
from decoding.gpu.tiles import NO_TILES

_GEMMAS = (f"Gemma{version}TextScaledWordEmbedding" for version in ("", "2", "3"))
_EMBEDDINGS = {"Embedding", *_GEMMAS}  # whose lines, or these times a scale, are all they give
_PACKABLE = (torch.float32, torch.bfloat16)


class InvariantLinear(torch.nn.Module):
    """`nn.Linear` for inference, over the same weight; the operation that follows is done before the one rounding."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        """Share the weight and the bias."""
        super().__init__()
        from decoding.gpu import linear  # Triton is only where the kernels run

        self.weight = torch.nn.Parameter(weight_OI.detach(), requires_grad=False)
        self.bias = None if bias_O is None else torch.nn.Parameter(bias_O.detach(), requires_grad=False)
        self.out_features, self.in_features = weight_OI.shape
        self._products = linear
        self.tiles = NO_TILES  # `decoding/gpu/tile_clock.py` chooses them

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute `x W^T + b`, [..., O]."""
        out_NO = self._products.multiply(x.reshape(-1, self.in_features), self.weight, self.bias, tiles=self.tiles)
        return out_NO.view(*x.shape[:-1], self.out_features)

    def plus(self, x_NI: torch.Tensor, other_NO: torch.Tensor) -> torch.Tensor:
        """Compute `(x W^T + b) + other`, rounded once."""
        return self._products.multiply(x_NI, self.weight, self.bias, other_NO, tiles=self.tiles)

    def sums(self, x_NI: torch.Tensor) -> Any:
        """Compute `x W^T + b` for a kernel that adds up its parts."""
        return self._products.sums(x_NI, self.weight, self.bias, self.tiles)

    def plus_and_norm(
        self, x_NI: torch.Tensor, other_NO: torch.Tensor, norm_O: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what `plus` does, and the root mean square normalization of it with these weights."""
        return self._products.add_parts(self.sums(x_NI), other_NO, norm_O, epsilon)

    def gated(self, x_NI: torch.Tensor, gate: "InvariantLinear") -> torch.Tensor:
        """Compute `silu(gate(x)) * (x W^T + b)`, rounded once."""
        return self._products.multiply(x_NI, self.weight, self.bias, None, (gate.weight, gate.bias), self.tiles)


class PackedLinear(torch.nn.Module):
    """`nn.Linear` for inference on CPU; the operation that follows is done in the same pass over the outputs."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight_OI.shape
        self.bias = bias_O
        self._pack(weight_OI)

    @property
    def weight(self) -> torch.Tensor:
        """The weight [O, I] in plain order, as a copy for inspection."""
        dense: torch.Tensor = self._packed.to_dense()
        return dense

    def replace(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        """Take other numbers of the same shapes."""
        self._pack(weight_OI)
        if self.bias is not None and bias_O is not None:
            self.bias.copy_(bias_O)

    def _pack(self, weight_OI: torch.Tensor) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach().contiguous(), None)

    def forward(self, x_NI: torch.Tensor) -> torch.Tensor:
        """Compute `x W^T + b`, [..., O]."""
        return self._pointwise(x_NI, "none")

    def plus(self, x_NI: torch.Tensor, other_NO: torch.Tensor) -> torch.Tensor:
        """Compute `(x W^T + b) + other`."""
        return self._binary(x_NI, other_NO, "add")

    def gated(self, x_NI: torch.Tensor, gate: "PackedLinear") -> torch.Tensor:
        """Compute `silu(gate(x)) * (x W^T + b)`."""
        return self._binary(x_NI, gate._pointwise(x_NI, "swish"), "mul")

    def _binary(self, x_NI: torch.Tensor, other_NO: torch.Tensor, what: str) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(x_NI, other_NO, self._packed, self.bias, what)
        return out

    def _pointwise(self, x_NI: torch.Tensor, what: str) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x_NI, self._packed, self.bias, what, [], "")
        return out


Packed = KernelLinear | PackedLinear | InvariantLinear | Fp8Linear


def pack(
    weight_OI: torch.Tensor, bias_O: torch.Tensor | None, memory: HugePages | None = None, is_exact: bool = False
) -> Packed | None:
    """Make the fastest linear layer for this weight here, or an exact one; None if torch's own is to be used."""
    if is_exact:
        return InvariantLinear(weight_OI, bias_O)
    function = kernel_function(weight_OI)
    if function is not None:
        return KernelLinear(weight_OI, bias_O, function, memory)
    return PackedLinear(weight_OI, bias_O) if can_pack(weight_OI) else None


def can_pack(weight: torch.Tensor) -> bool:
    """Tell whether oneDNN multiplies such weights here."""
    if weight.device.type != "cpu" or weight.dtype not in _PACKABLE or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return weight.dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linears(network: torch.nn.Module, together: Seq[tuple[str, ...]] = (), is_exact: bool = False) -> None:
    """Replace every `nn.Linear` inside `network` by a packed one; the plain weights are freed.

    With `is_exact` the products are those of our GPU kernels. Layers of one module that are named `together` become one
    (`LinearSlice.fused`), even if nothing is packed.
    """
    num_bytes = sum(map(_num_kernel_bytes, network.modules()))
    memory = HugePages(num_bytes * 33 // 32) if num_bytes else None
    embeddings: list[tuple[torch.nn.Module, str, Any]] = [
        (parent, name, child)
        for parent in network.modules()
        for name, child in parent.named_children()
        if type(child).__name__ in _EMBEDDINGS
    ]
    tied = {identity_of(embedding): None for _, _, embedding in embeddings}
    of_both: dict[Any, KernelLinear] = {}  # by what an embedding has in common with the head
    # A list with the plain layers would keep their weights beside the packed ones.
    for parent in [module for module in network.modules() if not _is_plain(module)]:
        for names in together:
            if all(hasattr(parent, name) for name in names):
                fuse_linears(parent, names, memory, is_exact)
        for name in [name for name, child in parent.named_children() if _is_plain(child)]:
            child: Any = getattr(parent, name)
            packed = coded_layer([child], memory) or pack(child.weight, child.bias, memory, is_exact)
            if packed is not None:
                if isinstance(packed, KernelLinear) and identity_of(child) in tied:
                    of_both[identity_of(child)] = packed
                packed._forward_pre_hooks = child._forward_pre_hooks
                setattr(parent, name, packed)
                del child
                give_back_freed_memory()
    for parent, name, embedding in embeddings:
        layer = of_both.get(identity_of(embedding)) or coded_layer([embedding], memory)
        if layer is not None:
            setattr(parent, name, PackedEmbedding(layer, getattr(embedding, "embed_scale", None)))


def _is_plain(module: Any) -> bool:
    """Tell whether a module is torch's own linear layer, also one whose weight is left in a file."""
    return type(module) is torch.nn.Linear or (hasattr(module, "codes") and isinstance(module, torch.nn.Linear))


def _num_kernel_bytes(module: Any) -> int:
    """Return the bytes that our kernels' layer would have in the place of a module; 0 if there is none."""
    if not _is_plain(module) or not (hasattr(module, "codes") or kernel_function(module.weight)):
        return 0
    if not hasattr(module, "codes"):
        return int(module.weight.nbytes)
    return int(4 * module.in_features * module.out_features - module.codes.num_bytes_saved)


def packed_layers(network: torch.nn.Module) -> list[KernelLinear]:
    """Return the layers of a network that our CPU kernels read, each once and always in the same order."""
    return packed_among(list(network.modules()))


def coded_layers(network: torch.nn.Module) -> list[CodedLinear]:
    """Return the layers of a network that multiply codes."""
    that_multiply = [module for module in network.modules() if not isinstance(module, PackedEmbedding)]
    return [layer for layer in packed_among(that_multiply) if isinstance(layer, CodedLinear)]


def packed_among(modules: list[torch.nn.Module]) -> list[KernelLinear]:
    """Return the layers of these modules that our CPU kernels read, each once."""
    shown = {LinearSlice: "fused", PackedEmbedding: "layer"}
    layers = [getattr(module, shown[type(module)]) if type(module) in shown else module for module in modules]
    return [layer for layer in dict.fromkeys(layers) if isinstance(layer, KernelLinear)]


def use_library_products(network: torch.nn.Module) -> None:
    """Put torch's own layers in the place of those with our GPU kernels, over the same weights."""
    plain: dict[torch.nn.Module, torch.nn.Module] = {}

    def plain_of(layer: InvariantLinear) -> torch.nn.Module:
        return plain.setdefault(layer, plain_linear(layer.weight, layer.bias))

    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, InvariantLinear):
                found = plain_of(child)
                found._forward_pre_hooks = child._forward_pre_hooks
                setattr(parent, name, found)
            elif isinstance(child, LinearSlice) and isinstance(child.fused, InvariantLinear):
                child.show(plain_of(child.fused))


def plain_linear(weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.nn.Linear:
    """Return torch's own layer over this weight."""
    num_outputs, num_inputs = weight_OI.shape
    linear = torch.nn.Linear(num_inputs, num_outputs, bias=bias_O is not None, device="meta")
    linear.weight = torch.nn.Parameter(weight_OI, requires_grad=False)
    if bias_O is not None:
        linear.bias = torch.nn.Parameter(bias_O, requires_grad=False)
    return linear


class LinearSlice(torch.nn.Module):
    """A part of a fused linear layer, in the place where the network's own code expects the original layer."""

    def __init__(self, fused: torch.nn.Module, first: int, last: int) -> None:
        """Show the outputs `first` up to `last` (not included) of `fused`."""
        super().__init__()
        self._fused: tuple[Any] = (fused,)  # in a tuple: not a child of each slice
        self.first, self.last = first, last

    def show(self, fused: torch.nn.Module) -> None:
        """Show the same outputs of another layer."""
        self._fused = (fused,)

    @property
    def fused(self) -> torch.nn.Module:
        fused: torch.nn.Module = self._fused[0]
        return fused

    @property
    def weight(self) -> torch.Tensor:
        """The slice's lines of the fused weight."""
        weight: torch.Tensor = self._fused[0].weight[self.first : self.last]
        return weight

    @property
    def bias(self) -> torch.Tensor | None:
        """The slice's part of the fused bias."""
        bias: torch.Tensor | None = self._fused[0].bias
        return None if bias is None else bias[self.first : self.last]

    @property
    def scales(self) -> torch.Tensor | None:
        """The scales of the slice's lines, where the fused layer has FP8 weights."""
        fused = self._fused[0]
        if not isinstance(fused, Fp8Linear):
            return None
        size = fused.scaling.outputs
        return fused.scales[self.first // size : -(-self.last // size)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute all fused outputs and return the slice; this is not the fast path."""
        out: torch.Tensor = self.fused(x)[..., self.first : self.last]
        return out


def fuse_linears(
    parent: torch.nn.Module, names: tuple[str, ...], memory: HugePages | None = None, is_exact: bool = False
) -> None:
    """Let one linear layer compute what the named ones compute, side by side; they become slices of it."""
    parts: list[Any] = [getattr(parent, name) for name in names]
    if isinstance(parts[0], Fp8Linear):
        fused: torch.nn.Module = Fp8Linear.side_by_side(parts)
    elif (coded := coded_layer(parts, memory)) is not None:
        fused = coded
    else:
        weight = torch.cat([part.weight for part in parts])
        bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
        fused = pack(weight, bias, memory, is_exact) or plain_linear(weight, bias)
    first = 0
    for name, part in zip(names, parts, strict=True):
        setattr(parent, name, LinearSlice(fused, first, first + part.out_features))
        first += part.out_features
