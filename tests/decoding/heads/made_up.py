"""Heads that are made up: tiny configurations with random weights, and folders of both formats."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from decoding.heads.format.folder import Head
from decoding.heads.format.head_config import READ_PAIRS, HeadConfig, Kind, default_num_speculative_tokens, normalized
from decoding.heads.format.tensors import Expected, expected_tensors, membership, offsets

V, D, H = 128, 64, 32
LLAMA = {
    "model_type": "llama",
    "vocab_size": V,
    "hidden_size": H,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "rope_theta": 5000.0,
}
# The variants of EAGLE-3: its authors' own, gpt-oss' and that of speculators 0.9, and norms for each feature.
NORMS: dict[str, dict[str, bool]] = {
    "plain": {},
    "norm_before_fc": {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
    "fc_norm": {"norm_before_residual": True, "fc_norm": True, "norm_output": True},
}
KINDS: tuple[Kind, ...] = ("eagle3", "peagle", "dflash", "dflash2", "dspark")


def head_config(kind: Kind, layers: dict[str, Any] | None = None, **overrides: Any) -> HeadConfig:
    """A head of this kind for a target with 12 layers."""
    blocks = kind not in READ_PAIRS
    sizes = {"model_type": "qwen3" if blocks else "llama", "num_hidden_layers": 1 if kind == "eagle3" else 2}
    own: dict[str, Any] = {"mask_token_id": 5} if kind != "eagle3" else {}
    own |= {"block_size": 6} if blocks else {}
    if kind == "dspark":
        own |= {"markov_rank": 4, "enable_confidence_head": True, "confidence_head_with_markov": True}
        own["sample_from_anchor"] = True
    if kind == "dflash2":
        own |= {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 4, "selector_top_k": 5}
    num_tokens = default_num_speculative_tokens(kind, own.get("block_size"), own.get("sample_from_anchor", False))
    return HeadConfig(
        **{
            "kind": kind,
            "format": "speculators",
            "layer_config": normalized({**LLAMA, **sizes, "dtype": "float32", **(layers or {})}),
            "draft_vocab_size": V if kind == "dflash" else D,
            "target_hidden_size": H,
            "layer_ids": (1, 4, 10),
            "layer_ids_are": "inputs",
            "num_speculative_tokens": num_tokens,
            "target_name": "someone/target",
            "target_architectures": ("LlamaForCausalLM",),
            **own,
            **overrides,
        }
    )


def head(kind: Kind, seed: int = 0, layers: dict[str, Any] | None = None, **overrides: Any) -> Head:
    """A head with random weights, with all tensors but those that only a full vocabulary may have."""
    config = head_config(kind, layers, **overrides)
    return Head(config, random_tensors(config, seed))


def random_tensors(config: HeadConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tensors of a head, with a random part of the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    is_reduced = config.draft_vocab_size < config.vocab_size
    wanted = {
        name: each
        for name, each in expected_tensors(config).items()
        if not each.is_optional or is_reduced or name not in ("d2t", "t2d")
    }
    if config.kind not in READ_PAIRS:
        wanted = {name: each for name, each in wanted.items() if not each.is_optional or each.kind != "float"}
    tensors = {name: _random(each, generator) for name, each in wanted.items() if each.kind == "float"}
    if is_reduced:
        ids_D = torch.randperm(config.vocab_size, generator=generator)[: config.draft_vocab_size].sort().values
        tensors |= {"d2t": offsets(ids_D), "t2d": membership(ids_D, config.vocab_size)}
    return tensors


def _random(expected: Expected, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(expected.shape, generator=generator) / 8 + float(len(expected.shape) == 1)


def write_folder(folder: Path, fields: dict[str, Any], tensors: dict[str, torch.Tensor]) -> str:
    """Write config.json and model.safetensors as other software would, and return the folder's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def say(folder: str, **fields: Any) -> None:
    """Change fields of a folder's config.json; None removes one."""
    file = Path(folder) / "config.json"
    said = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({name: value for name, value in said.items() if value is not None}))


def with_tensors(one: Head, **changes: torch.Tensor | None) -> Head:
    """The head with other tensors, `__` for dots in their names; None removes one."""
    named = {name.replace("__", "."): each for name, each in changes.items()}
    tensors = {**one.tensors, **named}
    return replace(one, tensors={name: each for name, each in tensors.items() if each is not None})


def same_tensors(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    """Tell whether two heads have the same tensors, bit for bit."""
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name]) for name in ours
    )
