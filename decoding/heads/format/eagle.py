"""The config.json of heads as their authors publish them: from its object to a HeadConfig, and back.

It is the configuration of a plain Llama or Qwen3 with some fields more. Who wrote it decides which:

eagle3  SafeAILab/EAGLE (yuhuili/EAGLE3-*), SpecForge (lmsys), AngelSlim, NVIDIA: `draft_vocab_size`, `eagle_config`
dflash  z-lab: `block_size`, `dflash_config` with `target_layer_ids` (outputs) and `mask_token_id`
dspark  DeepSeek: `target_layer_ids` (outputs), `mask_token_id`, `markov_rank`; SpecForge has them in `dflash_config`

The layer ids in an `eagle_config` are outputs of layers to SGLang and SpecForge and inputs to vLLM, so they are
"unknown" unless `aux_hidden_state_layer_ids_are` says it, a field of ours. What is written here are outputs, with that
field; ids that are the default of the target are left out, since all of them then read the same layers.
"""

import re
from typing import Any

from decoding.heads.format.fields import Said, normalized
from decoding.heads.format.head_config import HeadConfig, Kind, default_layer_inputs, default_num_speculative_tokens

_CLASSES: dict[tuple[Kind, str], str] = {
    ("eagle3", "llama"): "LlamaForCausalLMEagle3",
    ("eagle3", "qwen3"): "Eagle3Qwen3ForCausalLM",
    ("dflash", "qwen3"): "DFlashDraftModel",
    ("dflash", "llama"): "DFlashDraftModel",
    ("dspark", "qwen3"): "Qwen3DSparkModel",
}
_OTHER_HEADS = re.compile(r"medusa|dflash2|domino|peagle|xpress|mtp", re.IGNORECASE)
_FIELDS_OF_DFLASH2 = ("selector_rank", "conv_kernel_size")
_IDS_ARE = "aux_hidden_state_layer_ids_are"
_NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_OF_DSPARK = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
_NOT_OF_LAYERS = (
    "draft_vocab_size", "target_hidden_size", "num_target_layers", "eagle_config", "eagle_aux_hidden_state_layer_ids",
    "dflash_config", "target_layer_ids", "mask_token_id", "block_size", "sample_from_anchor", "causal",
    *_NORMS, *_OF_DSPARK,
)  # fmt: skip


def read_eagle(fields: dict[str, Any]) -> HeadConfig:
    """Return what the config.json of a head in its authors' own format says.

    Raises ValueError, with a message that begins with a verb, for kinds of heads that are not read here and for values
    that are missing or contradict each other.
    """
    said, assumed = Said(fields), list[str]()
    kind = _kind(said)
    layers = normalized({name: value for name, value in fields.items() if name not in _NOT_OF_LAYERS})
    own = {"eagle3": _eagle3, "dflash": _dflash, "dspark": _dspark}[kind](said, assumed)
    num_tokens = default_num_speculative_tokens(kind, own.get("block_size"), own.get("sample_from_anchor", False))
    assumed.append(f"speculative_tokens: {num_tokens}, which this format does not say")
    draft_vocab_size = said.number("draft_vocab_size")
    return HeadConfig(
        kind=kind,
        format="eagle",
        layer_config=layers,
        draft_vocab_size=int(layers["vocab_size"]) if draft_vocab_size is None else draft_vocab_size,
        target_hidden_size=said.number("target_hidden_size") or int(layers["hidden_size"]),
        num_speculative_tokens=num_tokens,
        num_target_layers=said.number("num_target_layers"),
        assumed=tuple(assumed),
        **own,
    )


def _kind(said: Said) -> Kind:
    """Return the kind of a head, from its class and its fields."""
    classes, block = said.texts("architectures"), said.inside("dflash_config")
    called = " ".join([*classes, block.text("projector_type") or ""]).strip() or "a head without a class"
    if _OTHER_HEADS.search(called) or said.has("medusa_num_heads") or any(map(block.has, _FIELDS_OF_DFLASH2)):
        raise ValueError(
            f"is {called}, and Dray knows eagle3, dflash and dspark in their authors' formats; use one of these, or a "
            "version of it in the speculators format"
        )
    if "dspark" in called.lower() or said.has("markov_rank"):
        return "dspark"
    if "dflash" in called.lower() or said.has("dflash_config"):
        return "dflash"
    if "eagle3" in called.lower() or said.has("draft_vocab_size"):
        if said.inside("eagle_config").fields.get("use_aux_hidden_state") is False:
            raise ValueError(
                "reads the last hidden state of its target alone (use_aux_hidden_state is false), and Dray knows heads "
                "that read several layers; use another head"
            )
        return "eagle3"
    raise ValueError(f"is {called}, which is no EAGLE-3 head (draft_vocab_size is missing, too); use an EAGLE-3 head")


def _eagle3(said: Said, assumed: list[str]) -> dict[str, Any]:
    inner = said.inside("eagle_config")
    norms = {name: said.flag(name) or inner.flag(name) for name in _NORMS}
    if not said.has("norm_before_residual") and not inner.has("norm_before_residual"):
        assumed.append("norm_before_residual: false, as in EAGLE's own code")
    ids = inner.ids("eagle_aux_hidden_state_layer_ids") or said.ids("eagle_aux_hidden_state_layer_ids")
    convention = inner.text(_IDS_ARE) or "unknown"
    if convention not in ("inputs", "outputs", "unknown"):
        raise ValueError(f"has {_IDS_ARE} {convention!r} in eagle_config, expected inputs or outputs; correct it")
    return {**norms, "layer_ids": ids, "layer_ids_are": "inputs" if ids is None else convention}


def _dflash(said: Said, assumed: list[str]) -> dict[str, Any]:
    inner = said.inside("dflash_config")
    return {
        **_blocks(said, inner),
        "sample_from_anchor": said.flag("sample_from_anchor") or inner.flag("sample_from_anchor"),
        "sliding_window_non_causal": not inner.flag("causal", True),
    }


def _dspark(said: Said, assumed: list[str]) -> dict[str, Any]:
    inner = said.inside("dflash_config")
    where = said if said.has("markov_rank") else inner
    rank = where.number("markov_rank")
    if rank is None:
        raise ValueError("has no markov_rank, which a dspark head has; add it to its config.json")
    return {
        **_blocks(said, inner),
        "sample_from_anchor": said.flag("sample_from_anchor", True) and inner.flag("sample_from_anchor", True),
        "sliding_window_non_causal": not (said.flag("causal", True) and inner.flag("causal", True)),
        "markov_rank": rank,
        "markov_head_type": where.text("markov_head_type") or "vanilla",
        "enable_confidence_head": where.flag("enable_confidence_head", True),
        "confidence_head_with_markov": where.flag("confidence_head_with_markov", True),
    }


def _blocks(said: Said, inner: Said) -> dict[str, Any]:
    """Return what heads that fill in blocks share; authors write it outside of dflash_config or inside."""
    ids = inner.ids("target_layer_ids") or said.ids("target_layer_ids")
    if ids is None:
        raise ValueError("has no target_layer_ids, the ids of the layers that it reads; add them to its config.json")
    mask = inner.number("mask_token_id")
    return {
        "layer_ids": ids,
        "layer_ids_are": "outputs",
        "mask_token_id": said.number("mask_token_id") if mask is None else mask,
        "block_size": said.number("block_size") or inner.number("block_size"),
    }


def write_eagle(config: HeadConfig, dtype: str) -> dict[str, Any]:
    """Return the config.json of a head in its authors' format, whose weights are of `dtype` ("bfloat16").

    Raises ValueError for a head that this format cannot say: a peagle head, an eagle3 head of several layers, ids of
    which it is not known what they mean.
    """
    architecture = _CLASSES.get((config.kind, config.layer_config["model_type"]))
    if architecture is None or (config.kind == "eagle3" and config.num_layers > 1):
        raise ValueError(
            f"is of kind {config.kind} with {config.num_layers} {config.layer_config['model_type']} layers, for which "
            "there is no format but that of speculators; use it (--format speculators)"
        )
    outputs = config.layer_ids_as("outputs")
    fields = {**config.layer_config, "architectures": [architecture], "dtype": dtype}
    if config.kind == "eagle3" or config.draft_vocab_size < config.vocab_size:
        fields["draft_vocab_size"] = config.draft_vocab_size
    if config.target_hidden_size != config.hidden_size:
        fields["target_hidden_size"] = config.target_hidden_size
    if config.kind == "eagle3":
        fields |= {name: getattr(config, name) for name in _NORMS}
        if outputs is not None and not _is_default(config):
            fields["eagle_config"] = {
                "eagle_aux_hidden_state_layer_ids": list(outputs),
                "use_aux_hidden_state": True,
                _IDS_ARE: "outputs",
            }
        return fields
    if outputs is None:
        raise ValueError("does not name the layers that it reads, and its format has no default; name them")
    if config.num_target_layers is not None:
        fields["num_target_layers"] = config.num_target_layers
    block: dict[str, Any] = {"mask_token_id": config.mask_token_id, "target_layer_ids": list(outputs)}
    block["sample_from_anchor"] = config.sample_from_anchor
    if config.sliding_window_non_causal:
        block["causal"] = False
    fields["block_size"] = config.block_size
    if config.kind == "dflash":
        return fields | {"dflash_config": block}
    return fields | block | {name: getattr(config, name) for name in _OF_DSPARK}


def _is_default(config: HeadConfig) -> bool:
    """Tell whether the layers that are read are those that a target of this size has by default."""
    num_layers = config.num_target_layers
    return num_layers is not None and config.layer_ids_as("inputs") == default_layer_inputs(num_layers)
