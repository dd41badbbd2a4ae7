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
from decoding.fp8.linear import Arithmetic, Fp8Linear, Scaling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BLOCK = 128
_DTYPES = ("bfloat16", "float16")
_EXPERTS = re.compile(r"(.*_)?num_(local_|routed_)?experts|n_routed_experts")
_FIELDS = ("quantization_config", "compression_config")  # the second is how llm-compressor's first versions say it
# What each field of a configuration must say, if it says anything. None: the field is read below.
_FP8_FIELDS: dict[str, tuple[Any, ...] | None] = {
    "activation_scheme": ("dynamic",),
    "dequantize": (False,),
    "fmt": ("e4m3", "float8_e4m3fn"),
    "ignored_layers": None,
    "modules_to_convert": ([],),
    "modules_to_not_convert": None,
    "scale_fmt": ("float",),
    "weight_block_size": ([_BLOCK, _BLOCK],),
}
_COMPRESSED_FIELDS: dict[str, tuple[Any, ...] | None] = {
    "config_groups": None,
    "format": ("float-quantized",),
    "global_compression_ratio": None,
    "ignore": None,
    "kv_cache_scheme": (),
    "quantization_status": ("compressed", "frozen"),
    "sparsity_config": None,
    "transform_config": ({},),
    "version": None,
}
_GROUP_FIELDS: dict[str, tuple[Any, ...] | None] = {
    "format": ("float-quantized",),
    "input_activations": None,
    "output_activations": (),
    "targets": None,
    "weights": None,
}
_NUMBERS: dict[str, tuple[Any, ...] | None] = {
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
    """Return the format of a checkpoint with this configuration, None if it is not quantized.

    Raises a ValueError that names the method and what about it cannot be run.
    """
    fields = config if isinstance(config, Mapping) else vars(config)
    said, is_inner = _said(fields)
    if said is None:
        return None
    is_bitsandbytes = said.get("load_in_4bit") or said.get("load_in_8bit")
    method = str(said.get("quant_method") or ("bitsandbytes" if is_bitsandbytes else "quantization_config"))
    try:
        if is_inner or fields.get("text_config") is not None:
            raise ValueError("it is a model of several parts")
        if experts := next((name for name in fields if _EXPERTS.fullmatch(name) and fields[name]), None):
            raise ValueError(f"it is a mixture of experts ({experts} is {fields[experts]})")
        if method == "fp8":
            return _fp8(said)
        if method == "compressed-tensors":
            return _compressed_tensors(said)
        raise ValueError("the method is another one")
    except ValueError as error:
        raise ValueError(
            f"is quantized ({method}), and Dray runs unquantized checkpoints, and FP8 ones with scales for blocks of "
            f"{_BLOCK} x {_BLOCK} weights or for rows: {error}; use the original one, or a published one in that "
            "form, or engine.backend vllm"
        ) from None


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


def without_format(config: PretrainedConfig) -> PretrainedConfig:
    """Remove what `fp8_format` reads, so that transformers does not dequantize the checkpoint, and return the rest."""
    for name in _FIELDS:
        vars(config).pop(name, None)
    return config


def _said(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, bool]:
    """Return what a configuration says of quantization, and whether it says so inside one of its parts."""
    parts = [inner if isinstance(inner, Mapping) else getattr(inner, "__dict__", {}) for inner in fields.values()]
    for part in (fields, *parts):
        said = next((part[name] for name in _FIELDS if isinstance(part.get(name), Mapping)), None)
        if said is not None:
            return said, part is not fields
    return None, False


def _fp8(said: Mapping[str, Any]) -> Fp8Format:
    _check(said, _FP8_FIELDS, "")
    # Without the first a weight has one scale, without the second the scales of activations are static.
    _require(said, ("weight_block_size", "activation_scheme"), "it")
    kept = _names(said, "modules_to_not_convert") or _names(said, "ignored_layers")
    return Fp8Format(Scaling("weight_scale_inv", _BLOCK, _BLOCK), None, kept)


def _compressed_tensors(said: Mapping[str, Any]) -> Fp8Format:
    _check(said, _COMPRESSED_FIELDS, "")
    _require(said, ("config_groups", "format"), "it")
    if (sparsity := _inner(said, "sparsity_config", "").get("format", "dense")) != "dense":
        raise ValueError(f"sparsity_config.format is {sparsity!r}")
    strategies: set[str] = set()
    targets: list[str] = []
    groups = _inner(said, "config_groups", "")
    for name in groups:
        group, where = _inner(groups, name, "config_groups."), f"config_groups.{name}."
        _check(group, _GROUP_FIELDS, where)
        weights, activations = (_inner(group, part, where) for part in ("weights", "input_activations"))
        strategy = weights.get("strategy")
        if not isinstance(strategy, str) or strategy not in _WEIGHTS:
            raise ValueError(f"config_groups.{name}.weights.strategy is {strategy!r}")
        _check(weights, _WEIGHTS[strategy], f"config_groups.{name}.weights.")
        _check(activations, _ACTIVATIONS[strategy], f"config_groups.{name}.input_activations.")
        _require(weights, ("type", "num_bits"), f"config_groups.{name}.weights")
        _require(activations, ("type", "num_bits", "strategy", "dynamic"), f"config_groups.{name}.input_activations")
        strategies.add(strategy)
        targets += _names(group, "targets", where)
    if len(strategies) > 1:
        raise ValueError(f"its layers are of several kinds ({', '.join(sorted(strategies))})")
    scaling = Scaling("weight_scale", 1, None) if strategies == {"channel"} else Scaling("weight_scale", _BLOCK, _BLOCK)
    return Fp8Format(scaling, tuple(targets), _names(said, "ignore"))


def _inner(said: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    """Return what a field holds, nothing if it is absent; raise a ValueError if that has no fields of its own."""
    value = said.get(name) or {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}{name} is {value!r}")
    return value


def _names(said: Mapping[str, Any], name: str, where: str = "") -> tuple[str, ...]:
    """Return the names and patterns in a field; raise a ValueError for what is no list of such."""
    value = said.get(name) or ()
    if not isinstance(value, list | tuple) or not all(isinstance(pattern, str) for pattern in value):
        raise ValueError(f"{where}{name} is {value!r}, which is no list of names")
    for pattern in (pattern for pattern in value if pattern.startswith("re:")):
        try:
            re.compile(pattern.removeprefix("re:"))
        except re.error as error:
            raise ValueError(f"{where}{name} has {pattern!r}, which is no pattern ({error})") from None
    return tuple(value)


def _require(said: Mapping[str, Any], names: tuple[str, ...], what: str) -> None:
    """Raise a ValueError for the first of these fields that says nothing."""
    for name in names:
        if not said.get(name):
            raise ValueError(f"{what} does not say {name}")


def _check(said: Mapping[str, Any], known: Mapping[str, tuple[Any, ...] | None], where: str) -> None:
    """Raise a ValueError for a field that says something other than what is known."""
    for name, value in said.items():
        if value is None or name == "quant_method":
            continue
        if name not in known:
            raise ValueError(f"{where}{name} is {value!r}, which Dray does not know")
        allowed = known[name]
        if allowed is not None and (list(value) if isinstance(value, tuple) else value) not in allowed:
            raise ValueError(f"{where}{name} is {value!r}")


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
