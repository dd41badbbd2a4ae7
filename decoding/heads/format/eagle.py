"""The config.json of heads as their authors publish them: from its object to a HeadConfig, and back.

It is the configuration of a plain Llama or Qwen3 with some fields more. Who wrote it decides which:

eagle3  SafeAILab/EAGLE (yuhuili/EAGLE3-*), SpecForge (lmsys), AngelSlim, NVIDIA: `draft_vocab_size`, `eagle_config`
peagle  Amazon, Automodel: the same with `parallel_drafting`, and the mask's id as vLLM reads it (`ptd_token_id`)
dflash  z-lab: `block_size`, `dflash_config` with `target_layer_ids` (outputs) and `mask_token_id`
dflash2 z-lab: the same with `conv_kernel_size`, `conv_group_size`, `selector_rank` and `selector_top_k`
dspark  DeepSeek: `target_layer_ids` (outputs), `mask_token_id`, `markov_rank`; SpecForge has them in `dflash_config`

The layer ids in an `eagle_config` are outputs of layers to SGLang and SpecForge and inputs to vLLM, so they are
"unknown" unless `aux_hidden_state_layer_ids_are` says it, a field of ours. What is written here are outputs, with that
field; ids that are the default of the target are left out, since all of them then read the same layers.
"""

import re
from typing import Any

from decoding.heads.format.head_config import (
    NUM_DEFAULT_IDS,
    OF_DFLASH2,
    OF_DSPARK,
    OF_SCALES,
    OWN_FIELDS,
    READ_PAIRS,
    HeadConfig,
    Kind,
    default_layer_inputs,
    default_num_speculative_tokens,
    layer_fields,
    normalized,
)
from decoding.heads.format.said import Said

_CLASSES: dict[tuple[Kind, str], str] = {
    ("eagle3", "llama"): "LlamaForCausalLMEagle3",
    ("eagle3", "qwen3"): "Eagle3Qwen3ForCausalLM",
    ("dflash", "qwen3"): "DFlashDraftModel",
    ("dflash", "llama"): "DFlashDraftModel",
    ("dflash2", "qwen3"): "DFlash2DraftModel",
    ("dspark", "qwen3"): "Qwen3DSparkModel",
}
_OTHER_HEADS = re.compile(r"medusa|domino|xpress|mtp", re.IGNORECASE)
_IDS_ARE = "aux_hidden_state_layer_ids_are"
_MASKS = ("mask_token_id", "pard_token", "ptd_token_id")  # names of one field
_DSPARKS_DEFAULTS = dict(zip(OF_DSPARK, (0, "vanilla", True, True), strict=True))  # the first one is always said


def read_eagle(fields: dict[str, Any]) -> HeadConfig:
    """Return what the config.json of a head in its authors' own format says.

    Raises ValueError, with a message that begins with a verb, for kinds of heads that are not read here and for values
    that are missing or contradict each other.
    """
    said, assumed = Said(fields), list[str]()
    kind = _kind(Said(fields))
    layers = normalized(fields)
    reads_pairs = kind in READ_PAIRS
    inner = said.inside("eagle_config" if reads_pairs else "dflash_config")
    own = _of_pairs(kind, said, inner, assumed) if reads_pairs else _of_blocks(kind, said, inner)
    _check_num_features(said, own["layer_ids"])
    num_tokens = default_num_speculative_tokens(kind, own.get("block_size"), own.get("sample_from_anchor", False))
    assumed.append(f"speculative_tokens: {num_tokens}, which this format does not say")
    draft_vocab_size = said.value("draft_vocab_size", int)
    config = HeadConfig(
        kind=kind,
        format="eagle",
        layer_config=layers,
        draft_vocab_size=int(layers["vocab_size"]) if draft_vocab_size is None else draft_vocab_size,
        target_hidden_size=said.value("target_hidden_size", int) or int(layers["hidden_size"]),
        num_speculative_tokens=num_tokens,
        num_target_layers=said.value("num_target_layers", int),
        assumed=tuple(assumed),
        **own,
    )
    said.refuse_unasked(layer_fields(layers["model_type"]))
    inner.refuse_unasked()
    return config


def _kind(said: Said) -> Kind:
    """Return the kind of a head, from its class and its fields."""
    classes, block = said.values("architectures", str) or (), said.inside("dflash_config")
    called = " ".join([*classes, block.value("projector_type", str) or ""]).strip() or "a head without a class"
    if _OTHER_HEADS.search(called) or said.has("medusa_num_heads"):
        raise ValueError(
            f"is {called}, and Dray knows eagle3, peagle, dflash, dflash2 and dspark in their authors' formats; use "
            "one of these, or a version of it in the speculators format"
        )
    if "dspark" in called.lower() or said.has("markov_rank"):
        return "dspark"
    if "dflash2" in called.lower() or any(said.has(name) or block.has(name) for name in OF_DFLASH2):
        return "dflash2"
    if "dflash" in called.lower() or said.has("dflash_config"):
        return "dflash"
    if any(name in called.lower() for name in ("eagle3", "peagle")) or said.has("draft_vocab_size"):
        if said.inside("eagle_config").fields.get("use_aux_hidden_state") is False:
            raise ValueError(
                "reads the last hidden state of its target alone (use_aux_hidden_state is false), and Dray knows heads "
                "that read several layers; use another head"
            )
        is_parallel = said.value("parallel_drafting", bool)
        if is_parallel is None:
            is_parallel = "peagle" in called.lower() or any(map(said.has, _MASKS))
        return "peagle" if is_parallel else "eagle3"
    raise ValueError(f"is {called}, which is no EAGLE-3 head (draft_vocab_size is missing, too); use an EAGLE-3 head")


def _of_pairs(kind: Kind, said: Said, inner: Said, assumed: list[str]) -> dict[str, Any]:
    norms = {name: said.value(name, bool, False) | inner.value(name, bool, False) for name in OWN_FIELDS["eagle3"]}
    if not said.has("norm_before_residual") and not inner.has("norm_before_residual"):
        assumed.append("norm_before_residual: false, as in EAGLE's own code")
    ids = said.values("eagle_aux_hidden_state_layer_ids", int)
    ids = inner.values("eagle_aux_hidden_state_layer_ids", int) or ids
    convention = inner.value(_IDS_ARE, str, "unknown")
    if convention not in ("inputs", "outputs", "unknown"):
        raise ValueError(f"has {_IDS_ARE} {convention!r} in eagle_config, expected inputs or outputs; correct it")
    own = {**norms, "layer_ids": ids, "layer_ids_are": "inputs" if ids is None else convention}
    said.value("parallel_drafting", bool)  # it is a part of the kind
    masks = {said.value(name, int) for name in _MASKS} - {None}
    if kind == "peagle":
        if len(masks) > 1:
            raise ValueError(
                f"has several ids of its mask, {sorted(masks)} ({', '.join(_MASKS)}); correct its config.json"
            )
        own["mask_token_id"] = next(iter(masks), None)
    return own


def _check_num_features(said: Said, ids: tuple[int, ...] | None) -> None:
    num_read = NUM_DEFAULT_IDS if ids is None else len(ids)
    if (num_said := said.value("num_aux_hidden_states", int, num_read)) != num_read:
        named = "names none, so that 3 would be read" if ids is None else f"names {list(ids)}"
        raise ValueError(f"reads {num_said} layers by num_aux_hidden_states, and {named}; name them in eagle_config")


def _of_blocks(kind: Kind, said: Said, inner: Said) -> dict[str, Any]:
    """Return what heads that fill in blocks say; authors write it outside of dflash_config or inside."""
    ids = said.values("target_layer_ids", int)
    ids = inner.values("target_layer_ids", int) or ids
    if ids is None:
        raise ValueError("has no target_layer_ids, the ids of the layers that it reads; add them to its config.json")
    inner.value("projector_type", str)  # it is a part of the kind

    def either(name: str, kind: type, default: Any = None) -> Any:
        outer = said.value(name, kind, default)
        return inner.value(name, kind, outer)

    is_causal = either("is_causal", bool, either("causal", bool))
    if is_causal and set(said.fields.get("layer_types") or [""]) != {"sliding_attention"}:
        raise ValueError(
            "has is_causal or causal true for layers without a sliding window, and in Dray such layers see all of a "
            "block; use another version of the head"
        )
    own = {
        "layer_ids": ids,
        "layer_ids_are": "outputs",
        "mask_token_id": either("mask_token_id", int),
        "block_size": either("block_size", int),
        "sample_from_anchor": either("sample_from_anchor", bool, kind == "dspark"),
        "sliding_window_non_causal": is_causal is False,
    }
    needed = {"dspark": ("markov_rank",), "dflash2": OF_DFLASH2}.get(kind, ())
    if lacking := [name for name in needed if not (said.has(name) or inner.has(name))]:
        raise ValueError(f"has no {lacking[0]}, which a {kind} head has; add it to its config.json")
    defaults = _DSPARKS_DEFAULTS if kind == "dspark" else OF_SCALES
    own |= {name: either(name, type(default), default) for name, default in defaults.items()}
    return own | ({name: either(name, int) for name in OF_DFLASH2} if kind == "dflash2" else {})


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
        fields |= {name: getattr(config, name) for name in OWN_FIELDS["eagle3"]}
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
        block["causal"] = fields["is_causal"] = False  # vLLM reads both, z-lab's own code the second
    fields["block_size"] = config.block_size
    if config.kind in ("dflash", "dflash2"):
        scales = {name: value for name in OF_SCALES if (value := getattr(config, name)) != OF_SCALES[name]}
        own = {name: getattr(config, name) for name in OF_DFLASH2} if config.kind == "dflash2" else {}
        return fields | {"dflash_config": block | scales | own}
    return fields | block | {name: getattr(config, name) for name in OF_DSPARK}


def _is_default(config: HeadConfig) -> bool:
    """Tell whether the layers that are read are those that a target of this size has by default."""
    num_layers = config.num_target_layers
    return num_layers is not None and config.layer_ids_as("inputs") == default_layer_inputs(num_layers)
