"""The words of `quantization_config` in a config.json, which `read_as` gives to the reader of their method.

A word that is not known could change the numbers, so it is refused.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from transformers import PretrainedConfig

PACKED = "pack-quantized"  # the format of compressed-tensors that is a method here
_METHODS = ("fp8", "compressed-tensors", PACKED, "gptq", "awq")  # those that some reader knows
_EXPERTS = re.compile(r"(.*_)?num_(local_|routed_)?experts|n_routed_experts")
_FIELDS = ("quantization_config", "compression_config")  # the second is how llm-compressor's first versions say it
Known = Mapping[str, tuple[Any, ...] | None]  # what each field must say, if it says anything; None: any value
_COMPRESSED_FIELDS: Known = {
    "config_groups": None,
    "global_compression_ratio": None,
    "ignore": None,
    "kv_cache_scheme": (),
    "quantization_status": ("compressed", "frozen"),
    "sparsity_config": None,
    "transform_config": ({},),
    "version": None,
}
_GROUP_FIELDS: Known = {"output_activations": (), "targets": None, "weights": None}
_Read = TypeVar("_Read")


def read_as(
    config: PretrainedConfig | Mapping[str, Any], readers: Mapping[str, Callable[[Mapping[str, Any]], _Read]]
) -> _Read | None:
    """Return what the reader of a configuration's method returns; None if it is not quantized, or not by these methods.

    Raises a ValueError that names the method and what about it cannot be run.
    """
    fields = config if isinstance(config, Mapping) else vars(config)
    said, is_inner = _said(fields)
    if said is None:
        return None
    is_bitsandbytes = said.get("load_in_4bit") or said.get("load_in_8bit")
    named = str(said.get("quant_method") or ("bitsandbytes" if is_bitsandbytes else "quantization_config"))
    method = PACKED if named == "compressed-tensors" and said.get("format") == PACKED else named
    try:
        if is_inner or fields.get("text_config") is not None:
            raise ValueError("it is a model of several parts")
        if experts := next((name for name in fields if _EXPERTS.fullmatch(name) and fields[name]), None):
            raise ValueError(f"it is a mixture of experts ({experts} is {fields[experts]})")
        if method not in _METHODS:
            raise ValueError("the method is another one")
        return readers[method](said) if method in readers else None
    except ValueError as error:
        raise ValueError(
            f"is quantized ({named}), and Dray runs unquantized checkpoints, packed ones of 4 or 8 bits (GPTQ, AWQ, "
            f"{PACKED}), and FP8 ones with scales for blocks of 128 x 128 weights or for rows: {error}; use the "
            "original one, or a published one in that form, or engine.backend vllm"
        ) from None


def without_format(config: PretrainedConfig) -> PretrainedConfig:
    """Remove what is said of quantization, so that transformers does not act on it, and return the rest."""
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


def groups_in(said: Mapping[str, Any], form: str, known: Known) -> dict[str, Mapping[str, Any]]:
    """Return the groups of layers in the words of compressed-tensors, by the words before their fields in an error.

    Raises a ValueError for another format, and for other fields of a group than those that are known beside it.
    """
    check(said, {**_COMPRESSED_FIELDS, "format": (form,)})
    require(said, ("config_groups", "format"), "it")
    if (sparsity := inner(said, "sparsity_config", "").get("format", "dense")) != "dense":
        raise ValueError(f"sparsity_config.format is {sparsity!r}")
    groups = inner(said, "config_groups", "")
    found = {f"config_groups.{name}.": inner(groups, name, "config_groups.") for name in groups}
    for where, group in found.items():
        check(group, {**_GROUP_FIELDS, "format": (form,), **known}, where)
    return found


def inner(said: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    """Return what a field holds, nothing if it is absent; raise a ValueError if that has no fields of its own."""
    value = said.get(name) or {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}{name} is {value!r}")
    return value


def names_in(said: Mapping[str, Any], name: str, where: str = "") -> tuple[str, ...]:
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


def require(said: Mapping[str, Any], names: tuple[str, ...], what: str) -> None:
    """Raise a ValueError for the first of these fields that says nothing."""
    for name in names:
        if not said.get(name):
            raise ValueError(f"{what} does not say {name}")


def check(said: Mapping[str, Any], known: Known, where: str = "") -> None:
    """Raise a ValueError for a field that says something other than what is known."""
    for name, value in said.items():
        if value is None or name == "quant_method":
            continue
        if name not in known:
            raise ValueError(f"{where}{name} is {value!r}, which Dray does not know")
        allowed = known[name]
        if allowed is not None and (list(value) if isinstance(value, tuple) else value) not in allowed:
            raise ValueError(f"{where}{name} is {value!r}")
