"""Fp8Format: how a checkpoint is quantized, read from `quantization_config` in its config.json, or a ValueError.

Two kinds of scales are run, and activations are always rounded to FP8 when they come ("dynamic"):

- blocks of 128 x 128 weights, and 128 activations of a token (DeepSeek-V3, Qwen3-FP8: quant_method "fp8";
  llm-compressor's FP8_BLOCK: "compressed-tensors");
- rows of the weight, and whole tokens (llm-compressor's FP8_DYNAMIC: "compressed-tensors").

Whatever is not known here could change the numbers, so it is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import PretrainedConfig

from decoding.checkpoint.layer_subset import changed_class
from decoding.checkpoint.quantized.words import Known, check, groups_in, inner, names_in, read_as, require
from decoding.fp8.linear import Arithmetic, Fp8Linear, Scaling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BLOCK = 128
_DTYPES = ("bfloat16", "float16")
# What each field of a configuration must say, if it says anything. None: the field is read below.
_FP8_FIELDS: Known = {
    "activation_scheme": ("dynamic",),
    "dequantize": (False,),
    "fmt": ("e4m3", "float8_e4m3fn"),
    "ignored_layers": None,
    "modules_to_convert": ([],),
    "modules_to_not_convert": None,
    "scale_fmt": ("float",),
    "weight_block_size": ([_BLOCK, _BLOCK],),
}
_NUMBERS: Known = {
    "num_bits": (8,),
    "type": ("float",),
    "symmetric": (True,),
    "observer": None,
    "observer_kwargs": None,
}
_WEIGHTS = {
    "channel": {**_NUMBERS, "strategy": None, "dynamic": (False,)},
    "block": {**_NUMBERS, "strategy": None, "dynamic": (False,), "block_structure": ([_BLOCK, _BLOCK], "128x128")},
}
_ACTIVATIONS = {  # that go with weights of such a strategy
    "channel": {**_NUMBERS, "strategy": ("token",), "dynamic": (True,)},
    "block": {**_NUMBERS, "strategy": ("group",), "dynamic": (True,), "group_size": (_BLOCK,)},
}


@dataclass(frozen=True)
class Fp8Format:
    """Which linear layers of a checkpoint have FP8 weights, and how these are scaled."""

    scaling: Scaling
    targets: tuple[str, ...] | None  # None: all linear layers
    ignored: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Tell whether the linear layer of this name has FP8 weights; an output head never has them."""
        is_target = self.targets is None or "Linear" in self.targets or _is_named(name, self.targets)
        return is_target and not _is_named(name, self.ignored)


def fp8_format(config: PretrainedConfig | Mapping[str, Any]) -> Fp8Format | None:
    """Return the format of a checkpoint with this configuration, None if it has no FP8 weights.

    Raises a ValueError that names the method and what about it cannot be run.
    """
    return read_as(config, {"fp8": _fp8, "compressed-tensors": _compressed_tensors})


def dtype_beside_fp8(config: PretrainedConfig, asked: str, name: str) -> str:
    """Return the dtype of what is not FP8 in a checkpoint, by default its own; raise a ValueError for float32."""
    own = str(getattr(config, "dtype", None) or "bfloat16").removeprefix("torch.")
    dtype = own if asked == "auto" else asked
    if dtype not in _DTYPES:
        raise ValueError(
            f"{name!r} has FP8 weights, which do not go with models.dtype {dtype}: activations are rounded to FP8, so "
            "float32 between the layers would not make its text exact; set models.dtype to bfloat16"
        )
    return dtype


def _fp8(said: Mapping[str, Any]) -> Fp8Format:
    check(said, _FP8_FIELDS)
    # Without the first a weight has one scale, without the second the scales of activations are static.
    require(said, ("weight_block_size", "activation_scheme"), "it")
    kept = names_in(said, "modules_to_not_convert") or names_in(said, "ignored_layers")
    return Fp8Format(Scaling("weight_scale_inv", _BLOCK, _BLOCK), None, kept)


def _compressed_tensors(said: Mapping[str, Any]) -> Fp8Format:
    strategies: set[str] = set()
    targets: list[str] = []
    for where, group in groups_in(said, "float-quantized", {"input_activations": None}).items():
        weights, activations = (inner(group, part, where) for part in ("weights", "input_activations"))
        strategy = weights.get("strategy")
        if not isinstance(strategy, str) or strategy not in _WEIGHTS:
            raise ValueError(f"{where}weights.strategy is {strategy!r}")
        check(weights, _WEIGHTS[strategy], f"{where}weights.")
        check(activations, _ACTIVATIONS[strategy], f"{where}input_activations.")
        require(weights, ("type", "num_bits"), f"{where}weights")
        require(activations, ("type", "num_bits", "strategy", "dynamic"), f"{where}input_activations")
        strategies.add(strategy)
        targets += names_in(group, "targets", where)
    if len(strategies) > 1:
        raise ValueError(f"its layers are of several kinds ({', '.join(sorted(strategies))})")
    scaling = Scaling("weight_scale", 1, None) if strategies == {"channel"} else Scaling("weight_scale", _BLOCK, _BLOCK)
    return Fp8Format(scaling, tuple(targets), names_in(said, "ignore"))


def _is_named(name: str, patterns: tuple[str, ...]) -> bool:
    """Tell whether a module is one of these: a name, the name of a module around it, its last parts, or "re:..."."""
    for pattern in patterns:
        if pattern.startswith("re:"):
            if re.match(pattern.removeprefix("re:"), name):
                return True
        elif f"{name}.".startswith(f"{pattern}.") or f".{name}".endswith(f".{pattern}"):
            return True
    return False


def fp8_class(whole: type[PreTrainedModel], form: Fp8Format, arithmetic: Arithmetic) -> type[PreTrainedModel]:
    """Return a model class with FP8 layers where the format says so; `from_pretrained` works as usual.

    transformers' own quantizers dequantize where there is no GPU, and need further packages where there is one. So they
    are not asked: our layers' tensors have the names and the dtypes of the checkpoint.
    """
    return changed_class(whole, partial(_replace_linears, form=form, arithmetic=arithmetic))


def _replace_linears(network: PreTrainedModel, form: Fp8Format, arithmetic: Arithmetic) -> None:
    head = network.get_output_embeddings()
    found = [
        (name, module)
        for name, module in network.named_modules()
        if type(module) is torch.nn.Linear and module is not head and form.has(name)
    ]
    for name, linear in found:
        has_bias = linear.bias is not None
        layer = Fp8Linear(linear.in_features, linear.out_features, has_bias, form.scaling, arithmetic)
        network.set_submodule(name, layer)
