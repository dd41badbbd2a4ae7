"""How a checkpoint has its packed weights, read from `quantization_config` in its config.json, or a ValueError.

Which weights are packed is told by the names of their tensors. What the writers say of the time before (data sets,
damping, kernels to run with) changes no number and is not read.
"""

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from decoding.checkpoint.quantized.words import PACKED, Known, check, groups_in, inner, names_in, read_as, require
from decoding.codes.packed_tensors import PackedLayout

_NOT_READ = (
    "act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_auto_increment",
    "damp_percent", "dataset", "disable_exllama", "do_fuse", "exllama_config", "fuse_max_seq_len", "lm_head",
    "max_input_length", "meta", "model_file_base_name", "model_name_or_path", "model_seqlen",
    "module_name_preceding_first_block", "modules_in_block_to_quantize", "modules_to_fuse", "modules_to_not_convert",
    "mse", "pad_token_id", "static_groups", "tokenizer", "true_sequential", "use_cuda_fp16", "use_exllama",
)  # fmt: skip
_OF_BOTH: Known = {**dict.fromkeys(_NOT_READ), "dynamic": None, "group_size": None, "pack_dtype": ("int32",)}
_GPTQ: Known = {
    **_OF_BOTH,
    "bits": (4, 8),
    "checkpoint_format": ("gptq", "gptq_v2"),
    "desc_act": (True, False),
    "format": ("gptq", "gptq_v2"),
    "is_marlin_format": (False,),
    "method": ("gptq",),
    "sym": (True, False),
}
_AWQ: Known = {
    **_OF_BOTH,
    "backend": ("autoawq", "auto"),
    "bits": (4,),
    "checkpoint_format": ("gemm",),
    "desc_act": None,  # GPTQModel says it of its defaults; this layout has no order of inputs
    "format": ("gemm",),
    "method": ("awq",),
    "sym": None,
    "version": ("gemm", "GEMM"),
    "zero_point": None,
}
_NEIGHBOURS = ("weight", "static", False)  # act orders that leave the inputs of a group together
_WEIGHTS: Known = {
    "actorder": (*_NEIGHBOURS, "group", "dynamic"),
    "dynamic": (False,),
    "group_size": None,
    "num_bits": (4, 8),
    "observer": None,
    "observer_kwargs": None,
    "scale_dtype": None,
    "strategy": ("group", "channel"),
    "symmetric": (True, False),
    "type": ("int",),
    "zp_dtype": None,
}


def packed_layout(config: PretrainedConfig | Mapping[str, Any]) -> PackedLayout | None:
    """Return how a checkpoint with this configuration has its packed weights, None if it has none.

    Raises a ValueError that names the method and what about it cannot be run.
    """
    return read_as(config, {"gptq": _gptq, "awq": _awq, PACKED: _pack_quantized})


def _check(said: Mapping[str, Any], known: Known) -> None:
    """Raise a ValueError for other words than are known, and for layers that are packed in several ways."""
    check(said, known)
    require(said, ("bits", "group_size"), "it")
    if other := next((name for name in inner(said, "dynamic", "") if not name.startswith("-:")), None):
        raise ValueError(f"dynamic has {other!r}, whose layers are packed otherwise")


def _gptq(said: Mapping[str, Any]) -> PackedLayout:
    _check(said, _GPTQ)
    is_symmetric, is_ordered = said.get("sym") is not False, bool(said.get("desc_act"))
    added = 0 if "gptq_v2" in (said.get("checkpoint_format"), said.get("format")) else 1
    return PackedLayout("gptq", said["bits"], _group_size(said), is_symmetric, is_ordered, added)


def _awq(said: Mapping[str, Any]) -> PackedLayout:
    _check(said, _AWQ)
    return PackedLayout("awq", 4, _group_size(said), is_symmetric=False)


def _pack_quantized(said: Mapping[str, Any]) -> PackedLayout:
    layouts = set()
    for where, group in groups_in(said, PACKED, {"input_activations": ()}).items():
        names_in(group, "targets", where)
        weights = inner(group, "weights", where)
        check(weights, _WEIGHTS, f"{where}weights.")
        require(weights, ("num_bits", "type", "strategy"), f"{where}weights")
        size = _group_size(weights, f"{where}weights.") if weights["strategy"] == "group" else None
        is_ordered = (weights.get("actorder") or False) not in _NEIGHBOURS
        is_symmetric = weights.get("symmetric") is not False
        layouts.add(PackedLayout(PACKED, weights["num_bits"], size, is_symmetric, is_ordered))
    if len(layouts) > 1:
        raise ValueError(f"its layers are of several kinds ({len(layouts)})")
    return layouts.pop()


def _group_size(said: Mapping[str, Any], where: str = "") -> int | None:
    """Return the inputs of a group, None for all of them; raise a ValueError for a size that is none."""
    size = said.get("group_size")
    if type(size) is not int or (size != -1 and (size <= 0 or size % 8)):
        raise ValueError(f"{where}group_size is {size!r}")
    return None if size == -1 else size
