"""Miniatures: a configuration made tiny, with every length so short that a short text crosses it.

A miniature keeps what makes a model what it is (kinds of layers, norms, position encodings, switches). It shrinks sizes
by the names that they have in transformers, and then every other number on which no weight's shape depends: windows,
chunks, scales, lengths after which positions are computed otherwise. A model with random weights of this configuration
shows in a moment what the real one does only in long texts.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from decoding.checkpoint.supported import NETWORK_FAILURES, rope_parameters

VOCAB_SIZE = 96
NUM_POSITIONS = 256
SHORT = 12  # what lengths become
_LONG = 40  # numbers from here on may be lengths; a probe's text reaches beyond smaller ones
_NUM_LAYERS = 4
_NUM_HEADS = 4
_WIDE = {"head_dim": 16, "hidden_size": 64, "intermediate_size": 64}

# The first pattern that matches a field's whole name decides. Fields that no pattern matches keep their values.
_SIZES: tuple[tuple[str, int], ...] = (
    (r".*vocab_size.*", VOCAB_SIZE),
    (r"num_nextn_predict_layers|num_kv_shared_layers|num_mtp.*", 0),
    (r"num_hidden_layers|n_layers?|num_layers|(num_)?(de|en)coder_layers|depth", _NUM_LAYERS),
    (r"(num_|n_)(attention_)?heads?|n_head|num_query_heads|(de|en)coder_attention_heads", _NUM_HEADS),
    (r"(num_linear|linear_num|swa_num)_.*heads|index_n_heads", 2),
    (r"kv_lora_rank|index_head_dim|index_topk|rotary_dim|lora_rank_.*", 8),
    (r"q_lora_rank|o_lora_rank|.*low_rank.*", 16),
    (r"qk_head_dim", 16),
    (r".*head_?dim(_v)?|head_size|dim_head|d_kv|d_head", 8),
    (r"moe_intermediate_size.*|.*expert_intermediate_size|moe_.*_hidden_size|expert_ffn_.*size", 24),
    (r"mamba_n_heads", 4),
    (r"mamba_d_head|mamba_d_state|mamba_chunk_size", 16),
    (r"mamba_d_ssm|attention_hidden_size", 64),
    (r"expand", 1),  # of Mamba 2: as many heads as fill the hidden size
    (r"(attn|expert)_layer_period", 2),
    (r"(attn|expert)_layer_offset", 1),
    (r"(.*_)?intermediate_size.*|.*ffn_dim|n_inner|ffn_(hidden_)?size|dim_ff|d_ff|feed_forward.*size|d_inner", 48),
    (r"hidden_size_per_layer_input|altup_.*_size|laurel_rank", 8),
    (r"hidden_size|d_model|n_embd|dim|word_embed_proj_dim|embedding_size|dim_model|emb_dim|hidden_dim", 32),
    (r"(n_routed|num_local|num|n|moe_num)_experts|num_routed_experts|zero_expert_num", 4),
    (r"num_experts_per_tok(en)?|top_k_experts|moe_top_?k|moe_k|.*experts_per_tok.*", 2),
    (r"n_group|topk_group|num_expert_group|n_groups|n_shared_experts", 1),
    (r"first_k_dense_replace|moe_layer_start_index|num_dense_layers", 1),
    (
        r"max_position_embeddings|model_max_length|n_positions|n_ctx|max_seq_len|max_sequence_length|seq_length",
        NUM_POSITIONS,
    ),
)
_PATTERNS = [(re.compile(pattern), size) for pattern, size in _SIZES]
_KEY_HEADS = re.compile(r"num_(global_)?key_value_heads|n_head_kv|num_kv_heads|kv_n_heads|multi_query_group_num")
_TURNED = re.compile(r"partial_rotary_factor|rotary_pct|rope_pct")  # the part of each head that positions turn
_TOKEN = re.compile(r".*_token_(id|index)")
_TEXT_TOKENS = {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"}
_LEFT_OUT = {"model_type", "transformers_version", "architectures", "dtype", "id2label", "label2id"}
_LEFT_OUT |= {"num_layers_per_stack"}  # which follows from the number of layers


def lengths_in(config: PretrainedConfig) -> list[int]:
    """Return the numbers of a configuration that may be lengths beyond which the model computes otherwise."""
    text = config.get_text_config()
    fields = [vars(text), *rope_parameters(text)]
    return [value for each in fields for name, value in each.items() if _is_length(name, value)]


def miniature(config: PretrainedConfig, *, is_wide: bool = False) -> PretrainedConfig:
    """Return a tiny configuration like this one. Raises what transformers raises where there is none.

    A wide one has sizes that the kernels of fused layers take.
    """
    settings = _shrunk(config, _WIDE if is_wide else {})
    text = type(config)(**settings).get_text_config()
    shapes = _shapes(config, settings)
    for name, value in vars(text).items():
        if _is_length(name, value) and _shapes(config, _with(settings, config, name, SHORT)) == shapes:
            settings = _with(settings, config, name, SHORT)
    return type(config)(**settings)


def _shrunk(config: PretrainedConfig, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the settings of a tiny configuration, of which some have the given sizes."""
    settings: dict[str, Any] = {}
    whole = config.to_dict()
    for name, value in whole.items():
        if name in _LEFT_OUT:
            continue
        if _is_inner(config, name):
            settings[name] = _shrunk(getattr(config, name), sizes)
        elif _TOKEN.fullmatch(name):  # no text of a probe has the tokens of images and sounds
            settings[name] = None if value is None else 0 if name in _TEXT_TOKENS else VOCAB_SIZE
        elif name in sizes:
            settings[name] = sizes[name]
        elif name == "head_dim":
            settings[name] = 8
        elif name == "attention_types":  # GPT-Neo
            settings[name] = [[["global", "local"], _NUM_LAYERS // 2]]
        elif name in {"initializer_range", "init_std"}:
            settings[name] = 0.15  # logits far apart
        elif _KEY_HEADS.fullmatch(name) and value in (None, getattr(config, "num_attention_heads", None)):
            settings[name] = min(value or getattr(config, "num_attention_heads", None) or _NUM_HEADS, _NUM_HEADS)
        elif _KEY_HEADS.fullmatch(name):
            settings[name] = min(value, _NUM_HEADS // 2)
        elif isinstance(value, int) and not isinstance(value, bool):
            settings[name] = _size(name, value)
        elif isinstance(value, list) and value and name.endswith(("layer_types", "layers_block_type")):
            settings[name] = _kinds(value)
        elif _TURNED.fullmatch(name) and isinstance(value, float):
            settings[name] = _turned(value)
        elif isinstance(value, bool | float | str):
            settings[name] = value
    part = getattr(config, "partial_rotary_factor", None) or 1.0
    for name in whole.keys() & {"rope_parameters", "rope_scaling"}:
        if isinstance(whole[name], dict):
            # The size of the heads, or of their parts, that rotary positions turn in a miniature.
            size = settings.get("qk_rope_head_dim") or settings.get("head_dim")
            size = size or settings.get("hidden_size", 32) // settings.get("num_attention_heads", _NUM_HEADS)
            settings[name] = _short_rope(whole[name], int(size), part)
    return settings


def _turned(part: float) -> float:
    """Return which part of each head is turned, so that it is an even number of a tiny head's eight places."""
    return max(1, round(4 * part)) / 4


def _with(settings: dict[str, Any], config: PretrainedConfig, name: str, value: int) -> dict[str, Any]:
    """Return the settings with another value of a field of the text model's configuration."""
    for part, inner in settings.items():
        if _is_inner(config, part) and name in inner:
            return {**settings, part: {**inner, name: value}}
    return {**settings, name: value}


def _is_inner(config: PretrainedConfig, name: str) -> bool:
    return name in config.sub_configs and isinstance(getattr(config, name, None), PretrainedConfig)


def _is_length(name: str, value: Any) -> bool:
    if not isinstance(value, int) or isinstance(value, bool) or value < _LONG or _TOKEN.fullmatch(name):
        return False
    is_size = _KEY_HEADS.fullmatch(name) or any(pattern.fullmatch(name) for pattern, _ in _PATTERNS)
    return not is_size and not name.startswith("_")


def _shapes(config: PretrainedConfig, settings: dict[str, Any]) -> dict[str, torch.Size] | None:
    """Return the shapes of the weights of such a configuration with these settings; None if there is no network."""
    try:
        with torch.device("meta"):
            network = AutoModelForCausalLM.from_config(type(config)(**settings))
    except NETWORK_FAILURES:
        return None
    return {name: tensor.shape for name, tensor in network.state_dict().items()}


def _size(name: str, value: int) -> int:
    for pattern, size in _PATTERNS:
        if pattern.fullmatch(name):
            is_exact = "layer" in name  # kinds are laid out over as many layers
            return value if value <= 0 else size if is_exact else min(value, size)
    return value


def _kinds(layers: list[str]) -> list[str]:
    """Return as many layers as a miniature has, in which every kind occurs, in the order in which they come."""
    kinds = list(dict.fromkeys(layers))
    return [kinds[index % len(kinds)] for index in range(_NUM_LAYERS)]


def _short_rope(parameters: dict[str, Any], head_size: int, part: float) -> dict[str, Any]:
    """Return parameters of rotary positions that change their ways early, with factors for a tiny head."""
    short: dict[str, Any] = {}
    part = _turned(parameters.get("partial_rotary_factor") or part)
    for name, value in parameters.items():
        if isinstance(value, dict):
            short[name] = _short_rope(value, head_size, part)
        elif name == "original_max_position_embeddings":
            short[name] = SHORT
        elif _TURNED.fullmatch(name) and value is not None:
            short[name] = part
        elif isinstance(value, list):  # a factor for each frequency
            short[name] = value[: int(head_size * part) // 2]
        else:
            short[name] = value
    return short
