"""Tiny models in FP8, on disk as the published ones are: the same names, dtypes, shapes and words in config.json."""

import json
from collections.abc import Sequence as Seq
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.decoding.families import NO_SPECIAL_IDS, family_network
from tests.decoding.tiny import save

BLOCK = 128
LARGEST = 448.0
# Every weight has several blocks. Queries, keys and values have whole ones, but for the last family.
_SIZES: dict[str, object] = {
    "vocab_size": 48,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 96,
    "initializer_range": 0.08,
    **NO_SPECIAL_IDS,
}
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("LlamaConfig", _SIZES),
    "llama with biases": ("LlamaConfig", {**_SIZES, "attention_bias": True}),
    "qwen3": ("Qwen3Config", {**_SIZES, "tie_word_embeddings": True}),
    "gemma2": ("Gemma2Config", {**_SIZES, "sliding_window": 6}),  # runs transformers' own code
    "llama with parts of blocks": ("LlamaConfig", {**_SIZES, "num_key_value_heads": 1}),
}

_NUMBERS = {"num_bits": 8, "type": "float", "symmetric": True, "observer": None, "actorder": None}
_WEIGHTS = {**_NUMBERS, "dynamic": False, "group_size": None, "observer": "minmax", "observer_kwargs": {}}
_ACTIVATIONS = {**_NUMBERS, "dynamic": True}


def compressed_tensors(weights: dict[str, object], activations: dict[str, object]) -> dict[str, object]:
    """The words of llm-compressor."""
    group = {
        "input_activations": {**_ACTIVATIONS, **activations},
        "output_activations": None,
        "targets": ["Linear"],
        "weights": {**_WEIGHTS, **weights},
    }
    return {
        "config_groups": {"group_0": group},
        "format": "float-quantized",
        "global_compression_ratio": 1.24,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


KINDS: dict[str, dict[str, object]] = {
    # Qwen3-8B-FP8, DeepSeek-V3
    "blocks": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [BLOCK, BLOCK],
    },
    # Meta-Llama-3.1-8B-Instruct-FP8-dynamic
    "rows": compressed_tensors({"strategy": "channel"}, {"strategy": "token"}),
    "blocks by llm-compressor": compressed_tensors(
        {"strategy": "block", "block_structure": [BLOCK, BLOCK]}, {"strategy": "group", "group_size": BLOCK}
    ),
}


def scale_name(kind: str) -> str:
    return "weight_scale_inv" if kind == "blocks" else "weight_scale"


def quantized(weight_OI: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return FP8 weights, and the scales [rows, columns] by which they must be multiplied."""
    rows, columns = (1, weight_OI.shape[1]) if kind == "rows" else (BLOCK, BLOCK)
    largest_SG = torch.stack(
        [torch.stack([block.abs().max() for block in part.split(columns, 1)]) for part in weight_OI.split(rows)]
    )
    scales_SG = (largest_SG / LARGEST).to(torch.float32 if kind == "rows" else torch.bfloat16)  # both are published
    scaled_OI = weight_OI / spread(scales_SG, weight_OI.shape, kind)
    return scaled_OI.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scales_SG


def spread(scales_SG: torch.Tensor, shape: torch.Size, kind: str) -> torch.Tensor:
    """Return the scale of each weight [O, I]."""
    rows, columns = (1, shape[1]) if kind == "rows" else (BLOCK, BLOCK)
    return scales_SG.float().repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: shape[0], : shape[1]]


def save_fp8(network: PreTrainedModel, folder: Path, kind: str, kept: Seq[str] = ()) -> str:
    """Save a model with FP8 linear layers, but for its head and those `kept`; return the folder."""
    save(network.to(torch.bfloat16), folder)
    tensors = load_file(folder / "model.safetensors")
    modules = [name.removesuffix(".weight") for name in tensors if name.endswith("_proj.weight")]
    for module in modules:
        if module not in kept:
            weight_OI, scales_SG = quantized(tensors[f"{module}.weight"].float(), kind)
            tensors |= {f"{module}.weight": weight_OI, f"{module}.{scale_name(kind)}": scales_SG}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    said = KINDS[kind]
    if kept:
        said = {**said, "modules_to_not_convert" if kind == "blocks" else "ignore": ["lm_head", *kept]}
    say(folder, quantization_config=said)
    return str(folder)


def saved_fp8(family: str, folder: Path, kind: str, kept: Seq[str] = (), **overrides: object) -> str:
    """Save a random model of a family with FP8 linear layers; return its folder."""
    return save_fp8(family_network(family, FAMILIES, **overrides), folder, kind, kept)


def say(folder: Path, **fields: object) -> None:
    """Change fields of config.json."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
