"""Tiny configurations of model families: the class name of the configuration, and its settings."""

import transformers

from tests.decoding.tiny import build, save

NO_SPECIAL_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SMALL = {"vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **NO_SPECIAL_IDS}
COMMON = {**SMALL, "intermediate_size": 48, "max_position_embeddings": 96, "initializer_range": 0.15}
GROUPED = {**COMMON, "num_key_value_heads": 2}
GPT = {"vocab_size": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.15, **NO_SPECIAL_IDS}
OPT = {**SMALL, "word_embed_proj_dim": 32, "ffn_dim": 48, "max_position_embeddings": 96, "init_std": 0.15}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 24}
WINDOW = 6  # smaller than the texts
GEMMA = {**GROUPED, "head_dim": 8, "sliding_window": WINDOW}

FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("LlamaConfig", GROUPED),
    "llama_yarn": ("LlamaConfig", {**GROUPED, "rope_parameters": YARN}),
    "mistral": ("MistralConfig", {**GROUPED, "sliding_window": WINDOW}),
    "qwen2": ("Qwen2Config", {**GROUPED, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", {**GROUPED, "head_dim": 8}),
    "gemma2": ("Gemma2Config", {**GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0}),
    "gemma3": (
        "Gemma3TextConfig",
        {**GEMMA, "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "phi3": ("Phi3Config", GROUPED),
    "gpt_neox": ("GPTNeoXConfig", COMMON),
    "gpt2": ("GPT2Config", {**GPT, "n_positions": 96}),
    "opt": ("OPTConfig", OPT),
    "mixtral": ("MixtralConfig", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "falcon": ("FalconConfig", COMMON),
    "falcon_alibi": ("FalconConfig", {**COMMON, "alibi": True, "parallel_attn": False}),
    "bloom": ("BloomConfig", {**GPT, "hidden_size": 32}),
    "gptj": ("GPTJConfig", {**GPT, "n_positions": 96, "rotary_dim": 4}),
}

# Networks whose layers keep states. Chunks are shorter than the texts.
HYBRID = {**GROUPED, "num_hidden_layers": 4, "head_dim": 8}
_DELTA = {f"linear_num_{each}_heads": n for each, n in (("key", 2), ("value", 4))}
_DELTA |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4}
_MAMBA_2 = {"ssm_state_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2, "chunk_size": 8}
_LAYERS = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
STATES: dict[str, tuple[str, dict[str, object]]] = {
    "gated delta": ("Qwen3_5TextConfig", {**HYBRID, **_DELTA, "layer_types": _LAYERS}),
    "mamba 2": (
        "NemotronHConfig",
        {
            **GROUPED,
            **_MAMBA_2,
            "head_dim": 8,
            "initializer_range": 0.08,
            "layers_block_type": ["linear_attention", "mlp", "full_attention"],
        },
    ),
    "convolutions": ("Lfm2Config", {**HYBRID, "layer_types": ["conv", "conv", "full_attention", "conv"]}),
    "mamba 1": (
        "JambaConfig",
        {
            **GROUPED,
            "num_hidden_layers": 4,
            "num_experts": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "attn_layer_period": 4,
            "attn_layer_offset": 2,
        },
    ),
    "lightning": (
        "MiniMaxConfig",
        {**HYBRID, "num_local_experts": 2, "num_experts_per_tok": 1, "block_size": 8, "layer_types": _LAYERS},
    ),
}
EVERY_FAMILY = FAMILIES | STATES

# Networks whose layers run in our few large operations.
WIDE = {**GROUPED, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FUSED = {
    "llama": ("LlamaConfig", WIDE),
    "llama with biases": ("LlamaConfig", {**WIDE, "attention_bias": True, "mlp_bias": True}),
    "llama with tied embeddings": ("LlamaConfig", {**WIDE, "tie_word_embeddings": True}),
    "llama 3 positions": ("LlamaConfig", {**WIDE, "rope_parameters": LLAMA_3_ROPE}),
    "mistral": ("MistralConfig", {**WIDE, "sliding_window": None}),
    "qwen2": ("Qwen2Config", WIDE),
    "qwen3": ("Qwen3Config", {**WIDE, "head_dim": 32}),
    "one head for all": ("LlamaConfig", {**WIDE, "num_key_value_heads": 1}),
    "a head for each": ("LlamaConfig", {**WIDE, "num_key_value_heads": 4}),
    "small heads": ("LlamaConfig", {**WIDE, "hidden_size": 32, "head_dim": 8}),
}
# Those of other families, with options as they were published, which our GPU kernels do not run.
_ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
_SLIDING = {**WIDE, "sliding_window": 8, "layer_types": _ALTERNATING}
_LOCAL = {"rope_type": "default", "rope_theta": 1e4}
_ROPES = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, "sliding_attention": _LOCAL}
_MULTIPLIERS = {"embedding_multiplier": 12.0, "attention_multiplier": 0.0625, "residual_multiplier": 0.22}
FUSED_ON_CPU = {
    "gemma": ("GemmaConfig", {**WIDE, "head_dim": 32, "num_key_value_heads": 1}),
    "gemma2": (
        "Gemma2Config",
        {
            **{**_SLIDING, "head_dim": 32, "query_pre_attn_scalar": 144},
            **{"attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0},
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {**_SLIDING, "head_dim": 32, "query_pre_attn_scalar": 168, "num_key_value_heads": 1, "rope_parameters": _ROPES},
    ),
    "olmo2": ("Olmo2Config", WIDE),
    "olmo3": ("Olmo3Config", _SLIDING),
    "phi3": ("Phi3Config", WIDE),
    "phi3, three quarters turned, window": (
        "Phi3Config",
        {**WIDE, "head_dim": 32, "sliding_window": 8, "rope_parameters": {**_LOCAL, "partial_rotary_factor": 0.75}},
    ),
    "glm": ("GlmConfig", {**WIDE, "head_dim": 32, "attention_bias": True}),
    "glm4": ("Glm4Config", {**WIDE, "head_dim": 32}),
    "granite": ("GraniteConfig", {**WIDE, **_MULTIPLIERS, "logits_scaling": 6.0, "tie_word_embeddings": True}),
    "smollm3": ("SmolLM3Config", {**WIDE, "no_rope_layers": [1, 0, 1]}),
    "cohere": ("CohereConfig", {**WIDE, "logit_scale": 0.0625}),
    "cohere2": ("Cohere2Config", {**_SLIDING, "head_dim": 16, "logit_scale": 0.25}),
    "mistral with a window": ("MistralConfig", {**WIDE, "sliding_window": 8}),
    "qwen2 with windows": ("Qwen2Config", {**_SLIDING, "use_sliding_window": True}),
}
EVERY_FUSED = FUSED | FUSED_ON_CPU


def family_config(name: str, table=EVERY_FAMILY, **overrides: object) -> transformers.PretrainedConfig:
    """Return the configuration of a family."""
    class_name, settings = table[name]
    return getattr(transformers, class_name)(**{**settings, **overrides})


def family_network(name: str, table=EVERY_FAMILY, **overrides: object) -> transformers.PreTrainedModel:
    """Build a random model of a family."""
    return build(family_config(name, table, **overrides), seed=3)


NUM_LAYERS = 5  # of a saved model, so that it can be cut into stages of different sizes


def saved(name: str, folder, table=EVERY_FAMILY, **overrides: object) -> str:
    """Save a random model of a family with NUM_LAYERS layers; return its folder."""
    _, settings = table[name]
    overrides["n_layer" if "n_layer" in settings else "num_hidden_layers"] = NUM_LAYERS
    for types in {"layer_types", "layers_block_type"} & settings.keys():
        overrides[types] = (settings[types] * NUM_LAYERS)[:NUM_LAYERS]
    return save(family_network(name, table, **overrides), folder)
