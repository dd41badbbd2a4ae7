"""CodedLinear: a linear layer whose weight stays in 4 or 8 bits, multiplied as it is by our own CPU kernel.

The kernel turns codes into float32 in registers (`decoding/cpu/kernels/codes.h`) and adds in the order of float32
weights, so the results are those of `KernelLinear` over the dequantized weight, bit for bit.

Shapes: N lines, I inputs, O outputs, G groups of inputs, C columns of a block.
"""

import logging
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any

import numpy as np
import torch

from decoding.checkpoint.model_files import codes_in
from decoding.checkpoint.supported import in_one_line
from decoding.codes.left_weight import take_weight
from decoding.codes.weight import CodedWeight
from decoding.cpu.huge_pages import HugePages
from decoding.device import Device, give_back_freed_memory, pick_device
from decoding.fused import kernels
from decoding.fused.linear import KernelLinear

# The numbers of the formats in codes.h, by bits, type of scales, and whether there are minimums.
_FORMS = {
    (4, "float16", False): 1,
    (4, "float16", True): 2,
    (4, "float32", True): 3,
    (8, "float16", False): 4,
    (8, "float32", True): 5,
}
_COMPARED = 2048  # lines of a weight at once
_TOGETHER = 8  # inputs of one step of the kernel
_log = logging.getLogger(__name__)


class CodedLinear(KernelLinear):
    """A `KernelLinear` over codes. It takes other numbers (`replace`) as float32 weights."""

    def __init__(
        self,
        coded: CodedWeight,
        bias_O: torch.Tensor | None,
        linear_function: kernels.LinearFunction,
        memory: HugePages | None = None,
    ) -> None:
        """Lay out a copy of the codes in `memory` for the kernel of float32."""
        torch.nn.Module.__init__(self)
        self.out_features, self.in_features = coded.codes_OI.shape
        self.bias: torch.Tensor | None = None if bias_O is None else bias_O.detach().clone()
        self._function = linear_function
        form = coded.num_bits, str(coded.scales_OG.dtype), coded.minimums_OG is not None
        self._form = _FORMS[form] + 256 * coded.group_size
        packed = torch.from_numpy(_records(coded, kernels.linear_columns()))
        self._packed = packed if memory is None else memory.copy(packed)
        self._linear = self.described()

    @property
    def num_bytes_saved(self) -> int:
        """The bytes that the codes take less than float32 numbers."""
        return 4 * self.out_features * self.in_features - self._packed.numel() if self._form else 0

    def replace(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        """Take other numbers of the same shapes, which are kept in float32 elsewhere: describe the layer again."""
        if self._form:
            self._form, self._packed = 0, self._laid_out(weight_OI).contiguous()
            self._linear = self.described()
            self._share()
        super().replace(weight_OI, bias_O)


def lay_out_codes(network: torch.nn.Module) -> int:
    """Let modules whose weights were left in files make them of codes that are laid out here, or take them.

    Returns the bytes of the weights that are left. Raises a ValueError for a weight that cannot be read.
    """
    layers: dict[Any, CodedLinear | None] = {}
    left: list[Any] = [module for module in network.modules() if hasattr(module, "read_weight")]
    try:
        for module in left:
            if module.codes not in layers:
                layers[module.codes] = coded_layer([module])
                give_back_freed_memory()
            if (layer := layers[module.codes]) is None:
                take_weight(module)
            else:
                module.laid_out, module.read_weight = (layer,), partial(getattr, layer, "weight")
    except (OSError, ValueError) as error:
        name = getattr(network, "name_or_path", "")
        raise ValueError(f"cannot load the model at {name!r}: {in_one_line(error)}") from error
    return sum(4 * layer.in_features * layer.out_features for layer in layers.values() if layer is not None)


def coded_layer(linears: Seq[Any], memory: HugePages | None = None) -> CodedLinear | None:
    """Return one layer over the codes of these layers of torch, side by side.

    None if one of them has none (`load_network`), if the kernel does not run, and, with a warning, if the codes are
    those of other numbers than the weights.
    """
    linear_function = kernels.load_linear(torch.float32)
    if linear_function is None or not all(hasattr(linear, "codes") for linear in linears):
        return None
    own: CodedLinear | None = getattr(linears[0], "laid_out", (None,))[0] if len(linears) == 1 else None
    if own is not None and (own.bias is None) == (getattr(linears[0], "bias", None) is None):
        if memory is not None:
            own.move(memory.copy(own.state()["packed"]), is_lent=False)
        return own
    try:
        coded = CodedWeight.side_by_side([linear.codes.read() for linear in linears])
    except (OSError, ValueError) as error:
        _log.warning("the weights stay float32, since their codes cannot be read: %s", error)
        return None
    biases = [linear.bias for linear in linears if getattr(linear, "bias", None) is not None]
    layer, first = CodedLinear(coded, torch.cat(biases) if biases else None, linear_function, memory), 0
    for linear in linears:
        for weight_NI in linear.weight.split(_COMPARED):
            found_NI = layer.lines(torch.arange(first, first + len(weight_NI)))
            if not torch.equal(found_NI.view(torch.int32), weight_NI.view(torch.int32)):
                _log.warning("a weight stays float32: %s has other numbers now", linear.codes)
                return None
            first += len(weight_NI)
    return layer


def codes_run(folder: str, device: Device, dtype: str) -> bool:
    """Tell whether the codes in a model folder would be multiplied on this machine."""
    is_wanted = dtype == "float32" and bool(codes_in(folder)) and pick_device(device).type == "cpu"
    return is_wanted and kernels.load_linear(torch.float32) is not None


def _records(coded: CodedWeight, columns: int) -> np.ndarray:
    """Return the weight in the kernel's order: for each block of columns and each group its scales, minimums, codes."""
    num_outputs = len(coded.codes_OI)
    num_groups, group = coded.scales_OG.shape[1], coded.group_size

    def blocks(numbers_OX: np.ndarray) -> np.ndarray:
        padded = np.pad(numbers_OX, ((0, -num_outputs % columns), (0, 0)))
        return padded.reshape(-1, columns, num_groups, numbers_OX.shape[1] // num_groups)

    def as_bytes(numbers: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), num_groups, -1)
        return found

    heads = [coded.scales_OG] if coded.minimums_OG is None else [coded.scales_OG, coded.minimums_OG]
    codes_BGIC = blocks(coded.codes_OI).transpose(0, 2, 3, 1)
    if coded.num_bits == 4:
        by_eight = codes_BGIC.reshape(*codes_BGIC.shape[:2], group // _TOGETHER, _TOGETHER, columns)
        codes_BGIC = np.zeros((*by_eight.shape[:3], columns), np.uint32)
        for place in range(_TOGETHER):
            codes_BGIC |= (by_eight[:, :, :, place] & 15).astype(np.uint32) << np.uint32(4 * place)
    return np.concatenate([*(as_bytes(blocks(head).transpose(0, 2, 3, 1)) for head in heads), as_bytes(codes_BGIC)], -1)
