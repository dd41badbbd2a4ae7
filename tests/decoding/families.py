"""Tiny configurations of model families: the class name of the configuration, and its settings."""

import transformers

from tests.decoding.tiny import build, save

NO_SPECIAL_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
COMMON = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "initializer_range": 0.15,
    **NO_SPECIAL_IDS,
}
GROUPED = {**COMMON, "num_key_value_heads": 2}
GPT = {
    "vocab_size": 48,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 96,
    "initializer_range": 0.15,
    **NO_SPECIAL_IDS,
}
OPT = {"vocab_size": 48, "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 48, "num_hidden_layers": 2}
FALCON = {
    "vocab_size": 48,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.15,
}
WINDOW = 6  # smaller than the texts

FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("LlamaConfig", GROUPED),
    "llama_yarn": (
        "LlamaConfig",
        {
            **GROUPED,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 24,
            },
        },
    ),
    "mistral": ("MistralConfig", {**GROUPED, "sliding_window": WINDOW}),
    "qwen2": ("Qwen2Config", {**GROUPED, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", {**GROUPED, "head_dim": 8}),
    "gemma2": (
        "Gemma2Config",
        {
            **GROUPED,
            "head_dim": 8,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 8.0,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            **GROUPED,
            "head_dim": 8,
            "sliding_window": WINDOW,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "phi3": ("Phi3Config", GROUPED),
    "gpt_neox": ("GPTNeoXConfig", COMMON),
    "gpt2": ("GPT2Config", GPT),
    "opt": (
        "OPTConfig",
        {**OPT, "num_attention_heads": 4, "max_position_embeddings": 96, "init_std": 0.15, **NO_SPECIAL_IDS},
    ),
    "mixtral": ("MixtralConfig", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "falcon": ("FalconConfig", {**FALCON, "max_position_embeddings": 96, **NO_SPECIAL_IDS}),
    "falcon_alibi": ("FalconConfig", {**FALCON, "alibi": True, "parallel_attn": False, **NO_SPECIAL_IDS}),
    "bloom": (
        "BloomConfig",
        {"vocab_size": 48, "hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.15, **NO_SPECIAL_IDS},
    ),
    "gptj": ("GPTJConfig", {**GPT, "rotary_dim": 4}),
}

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

NUM_LAYERS = 5  # of a saved model, so that it can be cut into stages of different sizes


def saved(name: str, folder, table=FAMILIES, **overrides: object) -> str:
    """Save a random model of a family with NUM_LAYERS layers; return its folder."""
    class_name, settings = table[name]
    depth = "n_layer" if "n_layer" in settings else "num_hidden_layers"
    settings = {**settings, depth: NUM_LAYERS, **overrides}
    if "layer_types" in settings:
        settings["layer_types"] = (settings["layer_types"] * NUM_LAYERS)[:NUM_LAYERS]
    return save(build(getattr(transformers, class_name)(**settings), seed=3), folder)
