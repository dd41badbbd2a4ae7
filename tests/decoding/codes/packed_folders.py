"""Folders with packed weights, written by the formats' own words, and the float32 weights that they stand for.

Nothing here is taken from the reader: words are added up code by code, and numbers are multiplied in float64, in which
a scale times a difference of codes is exact.
"""

import json
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.decoding.tiny import save

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the outputs in a word, from its lowest bits


@dataclass(frozen=True)
class Kind:
    """A way to pack weights, and what config.json says of it."""

    method: str
    num_bits: int = 4
    group_size: int = 32  # -1: all inputs
    has_zeros: bool = False
    dtype: torch.dtype = torch.float16  # of the scales
    is_ordered: bool = False
    less: int = 0  # than a zero point is the number in the file
    said: dict[str, object] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, object]:
        if self.method == "gptq":
            said = {"bits": self.num_bits, "group_size": self.group_size, "desc_act": self.is_ordered}
            return {"quant_method": "gptq", **said, "sym": not self.has_zeros, "damp_percent": 0.1, **self.said}
        if self.method == "awq":
            said = {"bits": 4, "group_size": self.group_size, "zero_point": True, "version": "gemm"}
            return {"quant_method": "awq", **said, "modules_to_not_convert": None, **self.said}
        strategy = "channel" if self.group_size == -1 else "group"
        size = None if self.group_size == -1 else self.group_size
        weights = {"num_bits": self.num_bits, "type": "int", "strategy": strategy, "group_size": size}
        weights |= {"symmetric": not self.has_zeros, "dynamic": False, "observer": "minmax", "observer_kwargs": {}}
        weights |= {"actorder": "group" if self.is_ordered else None, "block_structure": None}
        group = {"weights": weights, "input_activations": None, "output_activations": None, "targets": ["Linear"]}
        said = {"config_groups": {"group_0": group}, "format": "pack-quantized", "ignore": ["lm_head"]}
        status = {"quantization_status": "compressed", "kv_cache_scheme": None, "global_compression_ratio": 1.5}
        return {"quant_method": "compressed-tensors", **said, **status, **self.said}


BF16, F32 = torch.bfloat16, torch.float32
KINDS = {
    "GPTQ": Kind("gptq", less=1),
    "GPTQ with zero points": Kind("gptq", has_zeros=True, less=1, said={"checkpoint_format": "gptq"}),
    "GPTQ v2": Kind("gptq", has_zeros=True, said={"checkpoint_format": "gptq_v2"}),
    "GPTQ that says v1 and is v2": Kind("gptq", said={"checkpoint_format": "gptq"}),
    "GPTQ of 8 bits by channels": Kind("gptq", num_bits=8, group_size=-1, less=1),
    "GPTQ in act order": Kind("gptq", is_ordered=True, has_zeros=True, less=1),
    "AWQ": Kind("awq", has_zeros=True),
    "AWQ by channels": Kind("awq", has_zeros=True, group_size=-1),
    "W4A16": Kind("pack-quantized", dtype=BF16),
    "W4A16 by channels": Kind("pack-quantized", dtype=BF16, group_size=-1),
    "W4A16 with zero points": Kind("pack-quantized", dtype=BF16, has_zeros=True),
    "W4A16 of float32": Kind("pack-quantized", dtype=F32, has_zeros=True),
    "W4A16 in act order": Kind("pack-quantized", dtype=BF16, is_ordered=True),
    "W8A16": Kind("pack-quantized", num_bits=8, dtype=BF16),
    "W8A16 with zero points": Kind("pack-quantized", num_bits=8, has_zeros=True),
    "W8A16 of float32": Kind("pack-quantized", num_bits=8, dtype=F32),
    "W8A16 of float32 with zero points": Kind("pack-quantized", num_bits=8, dtype=F32, has_zeros=True),
}
NOT_IN_CODES = ("GPTQ in act order", "W4A16 in act order", "W8A16 of float32 with zero points")


@dataclass(frozen=True)
class Numbers:
    """A weight's codes and zero points from 0, its scales, and the group of each input."""

    codes_OI: torch.Tensor
    scales_OG: torch.Tensor
    zeros_OG: torch.Tensor
    group_I: torch.Tensor

    @property
    def weight_OI(self) -> torch.Tensor:
        """Scale times (code - zero point), rounded once to float32."""
        steps_OI = (self.codes_OI - self.zeros_OG[:, self.group_I]).double()
        return (self.scales_OG.double()[:, self.group_I] * steps_OI).float()


def quantized(weight_OI: torch.Tensor, kind: Kind, seed: int = 0) -> Numbers:
    """Return numbers near a weight."""
    outputs, inputs = weight_OI.shape
    size = inputs if kind.group_size == -1 else kind.group_size
    generator = torch.Generator().manual_seed(seed)
    group_I = torch.arange(inputs) // size
    if kind.is_ordered:
        group_I = group_I[torch.randperm(inputs, generator=generator)]
    middle = 2 ** (kind.num_bits - 1)
    shape = outputs, inputs // size
    zeros_OG = torch.full(shape, middle)
    if kind.has_zeros:
        zeros_OG += torch.randint(-middle // 2, middle // 2 + 1, shape, generator=generator)
    spread = 1 + torch.rand(shape, generator=generator)  # so that no two groups have the same scale
    scales_OG = (spread * weight_OI.abs().max() / (2 * middle)).to(kind.dtype)
    steps_OI = torch.round(weight_OI / scales_OG.float()[:, group_I])
    codes_OI = (steps_OI + zeros_OG[:, group_I]).clamp(0, 2 * middle - 1)
    return Numbers(codes_OI.long(), scales_OG, zeros_OG, group_I)


def packed(codes: torch.Tensor, num_bits: int, dim: int, order: Seq[int] = range(8)) -> torch.Tensor:
    """Return words of 32 bits with the codes along a dimension, the first of `order` in the lowest bits."""
    codes = codes.movedim(dim, -1)
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % (32 // num_bits)))
    words = codes.unflatten(-1, (-1, 32 // num_bits))
    found = sum(words[..., place] << num_bits * bits for bits, place in zip(range(32 // num_bits), order, strict=False))
    assert isinstance(found, torch.Tensor)
    return torch.where(found < 2**31, found, found - 2**32).int().movedim(-1, dim).contiguous()


def parts_of(numbers: Numbers, kind: Kind) -> dict[str, torch.Tensor]:
    """Return the tensors of a packed weight, by the names behind its module."""
    bits, codes_OI, zeros_OG = kind.num_bits, numbers.codes_OI, numbers.zeros_OG - kind.less
    if kind.method == "gptq":
        tensors = {"qweight": packed(codes_OI.T, bits, 0), "qzeros": packed(zeros_OG.T, bits, 1)}
        return tensors | {"scales": numbers.scales_OG.T.contiguous(), "g_idx": numbers.group_I.int()}
    if kind.method == "awq":
        tensors = {"qweight": packed(codes_OI.T, bits, 1, AWQ_ORDER), "qzeros": packed(zeros_OG.T, bits, 1, AWQ_ORDER)}
        return tensors | {"scales": numbers.scales_OG.T.contiguous()}
    tensors = {"weight_packed": packed(codes_OI, bits, 1), "weight_scale": numbers.scales_OG}
    tensors["weight_shape"] = torch.tensor(codes_OI.shape)
    if kind.has_zeros:
        tensors["weight_zero_point"] = packed(zeros_OG, bits, 0)
    return tensors | ({"weight_g_idx": numbers.group_I.int()} if kind.is_ordered else {})


def save_packed(network: PreTrainedModel, folder: Path, kind: Kind, eos_token_id: int | None = None) -> str:
    """Save a model with packed linear layers, but for its head, and make the network that model; return the folder."""
    head, tensors = network.get_output_embeddings(), dict[str, torch.Tensor]()
    for number, (name, module) in enumerate(network.named_modules()):
        if isinstance(module, torch.nn.Linear) and module is not head:
            numbers = quantized(module.weight.detach(), kind, number)
            module.weight.data.copy_(numbers.weight_OI)
            tensors |= {f"{name}.{part}": tensor for part, tensor in parts_of(numbers, kind).items()}
    save(network, folder, eos_token_id)
    modules = {name.rpartition(".")[0] for name in tensors}
    others = load_file(folder / "model.safetensors")
    tensors |= {name: each for name, each in others.items() if name.removesuffix(".weight") not in modules}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": kind.config}))
    return str(folder)
