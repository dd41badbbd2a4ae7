"""The config.json of the speculators format: from its object to a HeadConfig, and back.

Read in speculators 0.9.0 (speculators/config.py, speculators/models/*/config.py). What is written has every field that
vLLM 0.33 needs (vllm/transformers_utils/configs/speculators), each with its value, since defaults differ: an absent
norm_before_residual is false to speculators and true to vLLM. Layer ids are inputs of layers.
"""

from typing import Any

import transformers

from decoding.heads.format.fields import Said, normalized
from decoding.heads.format.head_config import KINDS, READ_PAIRS, HeadConfig, Kind, default_num_speculative_tokens

_VERSION = "0.9.0"
_CLASSES: dict[Kind, str] = {
    "eagle3": "Eagle3DraftModel",
    "peagle": "PEagleDraftModel",
    "dflash": "DFlashDraftModel",
    "dspark": "DSparkDraftModel",
}
_DRAFT_VOCAB_SIZE, _BLOCK_SIZE, _MARKOV_RANK = 32000, 8, 256


def read_speculators(fields: dict[str, Any]) -> HeadConfig:
    """Return what the config.json of a head in the speculators format says.

    Raises ValueError, with a message that begins with a verb, for a type that is not read here and for values that are
    missing or contradict each other.
    """
    said, assumed = Said(fields), list[str]()
    kind = next((known for known in KINDS if known == said.text("speculators_model_type")), None)
    if kind is None:
        raise ValueError(
            f"is a head of type {fields.get('speculators_model_type')!r}, and Dray knows {', '.join(KINDS)}; "
            "use one of these, or a draft model"
        )
    if not said.has("transformer_layer_config"):
        raise ValueError("has no transformer_layer_config in its config.json; copy or download it again")
    layers = normalized(said.inside("transformer_layer_config").fields, said.text("dtype") or said.text("torch_dtype"))
    proposal = said.inside("speculators_config")
    verifier = proposal.inside("verifier")
    draft_vocab_size = said.number("draft_vocab_size")
    if draft_vocab_size is None:
        draft_vocab_size = _DRAFT_VOCAB_SIZE
        assumed.append(f"draft_vocab_size: {_DRAFT_VOCAB_SIZE}, the default of speculators")
    own: dict[str, Any] = _of_pairs(kind, said, assumed) if kind in READ_PAIRS else _of_blocks(kind, said, assumed)
    num_tokens = _speculative_tokens(proposal)
    if num_tokens is None:
        num_tokens = default_num_speculative_tokens(kind, own.get("block_size"), own.get("sample_from_anchor", False))
        assumed.append(f"speculative_tokens: {num_tokens}, as training has it by default")
    return HeadConfig(
        kind=kind,
        format="speculators",
        layer_config=layers,
        draft_vocab_size=draft_vocab_size,
        target_hidden_size=said.number("target_hidden_size") or int(layers["hidden_size"]),
        layer_ids_are="inputs",
        num_speculative_tokens=num_tokens,
        target_name=verifier.text("name_or_path"),
        target_architectures=verifier.texts("architectures"),
        mask_token_id=said.number("mask_token_id"),
        assumed=tuple(assumed),
        **own,
    )


def _of_pairs(kind: Kind, said: Said, assumed: list[str]) -> dict[str, Any]:
    if not said.has("norm_before_residual"):
        theirs = " (vLLM would take true)" if kind == "eagle3" else ""
        assumed.append(f"norm_before_residual: false, the default of speculators{theirs}")
    norms = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    return {"layer_ids": said.ids("eagle_aux_hidden_state_layer_ids"), **{name: said.flag(name) for name in norms}}


def _of_blocks(kind: Kind, said: Said, assumed: list[str]) -> dict[str, Any]:
    is_dspark = kind == "dspark"
    block_size = said.number("block_size")
    if block_size is None:
        block_size = _BLOCK_SIZE
        assumed.append(f"block_size: {_BLOCK_SIZE}, the default of speculators")
    own: dict[str, Any] = {
        "layer_ids": said.ids("aux_hidden_state_layer_ids"),
        "block_size": block_size,
        "sample_from_anchor": said.flag("sample_from_anchor", is_dspark),
        "sliding_window_non_causal": said.flag("sliding_window_non_causal"),
    }
    if is_dspark:
        rank = said.number("markov_rank")
        own |= {
            "markov_rank": _MARKOV_RANK if rank is None else rank,
            "markov_head_type": said.text("markov_head_type") or "vanilla",
            "enable_confidence_head": said.flag("enable_confidence_head", True),
            "confidence_head_with_markov": said.flag("confidence_head_with_markov", True),
        }
    return own


def _speculative_tokens(proposal: Said) -> int | None:
    """Return the number of tokens of the default method of proposal, or of the first one."""
    methods = proposal.fields.get("proposal_methods") or []
    if not isinstance(methods, list) or not all(isinstance(method, dict) for method in methods):
        raise ValueError("has proposal_methods that are not a list of objects; copy or download it again")
    default = proposal.text("default_proposal_method")
    chosen = [method for method in methods if method.get("proposal_type") == default] or methods
    return Said(chosen[0], "proposal_methods").number("speculative_tokens") if chosen else None


def write_speculators(config: HeadConfig, dtype: str) -> dict[str, Any]:
    """Return the config.json of a head in the speculators format, whose weights are of `dtype` ("bfloat16").

    Raises ValueError if the head's target is not named, or if it is not known what its layer ids mean.
    """
    if config.target_name is None:
        raise ValueError("does not name its target, and the speculators format does; name it (--target)")
    layer_ids = config.layer_ids_as("inputs")
    if layer_ids is None and config.kind not in READ_PAIRS:
        raise ValueError("does not name the layers that it reads, and vLLM asks a head of its kind for them; name them")
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
    if config.kind in READ_PAIRS:
        fields |= {
            "eagle_aux_hidden_state_layer_ids": None if layer_ids is None else list(layer_ids),
            "norm_before_residual": config.norm_before_residual,
            "norm_before_fc": config.norm_before_fc,
            "fc_norm": config.fc_norm,
            "norm_output": config.norm_output,
            "embed_requires_grad": config.kind == "peagle",
        }
    else:
        fields |= {
            "aux_hidden_state_layer_ids": list(layer_ids or ()),
            "block_size": config.block_size,
            "sample_from_anchor": config.sample_from_anchor,
            "sliding_window_non_causal": config.sliding_window_non_causal,
        }
    if config.mask_token_id is not None:
        fields["mask_token_id"] = config.mask_token_id
    if config.kind == "dspark":
        fields |= {
            "markov_rank": config.markov_rank,
            "markov_head_type": config.markov_head_type,
            "enable_confidence_head": config.enable_confidence_head,
            "confidence_head_with_markov": config.confidence_head_with_markov,
        }
    return fields
