"""The config.json of the speculators format: from its object to a HeadConfig, and back.

Read in speculators 0.9.0 (speculators/config.py, speculators/models/*/config.py), and dflash2 in its main branch. What
is written has every field that vLLM 0.33 needs (vllm/transformers_utils/configs/speculators), each with its value,
since defaults differ: an absent norm_before_residual is false to speculators and true to vLLM. Layer ids are inputs of
layers.
"""

from typing import Any

import transformers

from decoding.heads.format.head_config import (
    KINDS,
    OF_SCALES,
    OWN_FIELDS,
    READ_PAIRS,
    HeadConfig,
    Kind,
    default_num_speculative_tokens,
    layer_fields,
    normalized,
)
from decoding.heads.format.said import Said

_VERSION = "0.9.0"
_CLASSES: dict[Kind, str] = {
    "eagle3": "Eagle3DraftModel",
    "peagle": "PEagleDraftModel",
    "dflash": "DFlashDraftModel",
    "dflash2": "DFlash2DraftModel",
    "dspark": "DSparkDraftModel",
}
_IDS: dict[Kind, str] = {kind: "eagle_" * (kind in READ_PAIRS) + "aux_hidden_state_layer_ids" for kind in KINDS}
_DRAFT_VOCAB_SIZE = 32000
_DEFAULTS: dict[str, Any] = {  # flags that are not here are false; a dspark head predicts from the anchor, too
    "block_size": 8,
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 256,
    "selector_top_k": 16,
    "markov_rank": 256,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}


def read_speculators(fields: dict[str, Any]) -> HeadConfig:
    """Return what the config.json of a head in the speculators format says.

    Raises ValueError, with a message that begins with a verb, for a type that is not read here and for values that are
    missing or contradict each other.
    """
    said, assumed = Said(fields), list[str]()
    kind = next((known for known in KINDS if known == said.value("speculators_model_type", str)), None)
    if kind is None:
        raise ValueError(
            f"is a head of type {fields.get('speculators_model_type')!r}, and Dray knows {', '.join(KINDS)}; "
            "use one of these, or a draft model"
        )
    if not said.has("transformer_layer_config"):
        raise ValueError("has no transformer_layer_config in its config.json; copy or download it again")
    dtype = said.value("dtype", str) or said.value("torch_dtype", str)
    of_layers = said.inside("transformer_layer_config")
    layers = normalized(of_layers.fields, dtype)
    of_layers.refuse_unasked(layer_fields(layers["model_type"]))
    proposal = said.inside("speculators_config")
    verifier = proposal.inside("verifier")
    draft_vocab_size = said.value("draft_vocab_size", int)
    if draft_vocab_size is None:
        draft_vocab_size = _DRAFT_VOCAB_SIZE
        assumed.append(f"draft_vocab_size: {_DRAFT_VOCAB_SIZE}, the default of speculators")
    own = _own(kind, said, assumed)
    num_tokens = _speculative_tokens(proposal)
    if num_tokens is None:
        num_tokens = default_num_speculative_tokens(kind, own.get("block_size"), own.get("sample_from_anchor", False))
        assumed.append(f"speculative_tokens: {num_tokens}, as training has it by default")
    config = HeadConfig(
        kind=kind,
        format="speculators",
        layer_config=layers,
        draft_vocab_size=draft_vocab_size,
        target_hidden_size=said.value("target_hidden_size", int) or int(layers["hidden_size"]),
        layer_ids=said.values(_IDS[kind], int),
        layer_ids_are="inputs",
        num_speculative_tokens=num_tokens,
        target_name=verifier.value("name_or_path", str),
        target_architectures=verifier.values("architectures", str) or (),
        mask_token_id=said.value("mask_token_id", int),
        assumed=tuple(assumed),
        **own,
    )
    said.refuse_unasked()
    return config


def _own(kind: Kind, said: Said, assumed: list[str]) -> dict[str, Any]:
    """Return the fields that heads of a kind have by the same names as a HeadConfig."""
    if kind in READ_PAIRS and not said.has("norm_before_residual"):
        theirs = " (vLLM would take true)" if kind == "eagle3" else ""
        assumed.append(f"norm_before_residual: false, the default of speculators{theirs}")
    defaults = dict.fromkeys(OWN_FIELDS[kind], False) | _DEFAULTS
    defaults |= {"sample_from_anchor": kind == "dspark", "sliding_window_non_causal": kind == "dflash2"}
    own = {name: said.value(name, type(defaults[name]), defaults[name]) for name in OWN_FIELDS[kind]}
    if "block_size" in own and not said.has("block_size"):
        assumed.append(f"block_size: {own['block_size']}, the default of speculators")
    return own


def _speculative_tokens(proposal: Said) -> int | None:
    """Return the number of tokens of the default method of proposal, or of the first one."""
    methods = proposal.fields.get("proposal_methods") or []
    if not isinstance(methods, list) or not all(isinstance(method, dict) for method in methods):
        raise ValueError("has proposal_methods that are not a list of objects; copy or download it again")
    default = proposal.value("default_proposal_method", str)
    chosen = [method for method in methods if method.get("proposal_type") == default] or methods
    return Said(chosen[0], "proposal_methods").value("speculative_tokens", int) if chosen else None


def write_speculators(config: HeadConfig, dtype: str) -> dict[str, Any]:
    """Return the config.json of a head in the speculators format, whose weights are of `dtype` ("bfloat16").

    Raises ValueError if the head's target is not named, or if it is not known what its layer ids mean.
    """
    if config.target_name is None:
        raise ValueError("does not name its target, and the speculators format does; name it (--target)")
    layer_ids = config.layer_ids_as("inputs")
    if layer_ids is None and config.kind not in READ_PAIRS:
        raise ValueError("does not name the layers that it reads, and vLLM asks a head of its kind for them; name them")
    if lost := [name for name, unchanged in OF_SCALES.items() if getattr(config, name) != unchanged]:
        raise ValueError(
            f"has {lost[0]} {getattr(config, lost[0])}, which the speculators format cannot say; use the format of its "
            "authors (--format eagle)"
        )
    same_size = config.target_hidden_size == config.hidden_size
    fields: dict[str, Any] = {
        "architectures": [_CLASSES[config.kind]],
        "speculators_model_type": config.kind,
        "speculators_version": _VERSION,
        "transformers_version": transformers.__version__,
        "dtype": dtype,
        "tie_word_embeddings": False,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": None if same_size else config.target_hidden_size,
        "speculators_config": {
            "algorithm": config.kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": config.num_speculative_tokens,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": config.target_name, "architectures": list(config.target_architectures)},
        },
        "transformer_layer_config": config.layer_config,
    }
    fields[_IDS[config.kind]] = None if layer_ids is None else list(layer_ids)
    fields |= {name: getattr(config, name) for name in OWN_FIELDS[config.kind]}
    if config.kind in READ_PAIRS:
        fields["embed_requires_grad"] = config.kind == "peagle"
    if config.mask_token_id is not None:
        fields["mask_token_id"] = config.mask_token_id
    return fields
