"""Tiny random targets of each family, with a random MTP head in their files under published names."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.decoding import families
from tests.decoding.families import WINDOW
from tests.decoding.tiny import build, save

VOCAB_SIZE = 12  # so few that a random head is sometimes right
GROUPED = {**families.GROUPED, "vocab_size": VOCAB_SIZE}
_DELTA = {f"linear_num_{each}_heads": n for each, n in (("key", 2), ("value", 4))}
_DELTA |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "head_dim": 8}
_DELTA |= {"layer_types": ["linear_attention", "full_attention"]}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_EXPERTS |= {"shared_expert_intermediate_size": 16}
_ROUTED = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_ROUTED |= {"first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}
_LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
_NORMED = {"head_dim": 8, "use_qk_norm": True, "attention_bias": True}
_SINKS = {"head_dim": 12, "v_head_dim": 8, "sliding_window": WINDOW, **_ROUTED}
_SINKS |= {"layer_types": ["full_attention", "sliding_attention"]}
_MAMBA = {"ssm_state_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2, "head_dim": 8, **_ROUTED}
_MAMBA |= {"layers_block_type": ["linear_attention", "moe", "full_attention"], "initializer_range": 0.08}
_MAMBA |= {"moe_shared_expert_intermediate_size": 16}


class Published(NamedTuple):
    """A family: its target, a model that has the layers of one module, and the names of a head in its files."""

    config: str
    settings: dict[str, Any]  # besides those that all have
    module: dict[str, Any]  # what is otherwise in a model with the layers of one module
    names: tuple[str, str, str, str]  # norms of the embedding and of the state, projection, final norm
    layer: str
    renamed: tuple[str, str] = ("", "")  # in a layer: transformers' name, and the published one
    multiplies_by_1_and_w: bool = False
    num_modules: int = 1
    reads_normed: bool = True


def _named(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names)


_DEEPSEEK = _named("model.layers.{first}.", "enorm", "hnorm", "eh_proj", "shared_head.norm"), "model.layers.{}."
_QWEN = {"layer_types": ["full_attention"]}, _named("mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
_QWEN += "mtp.layers.{}.", ("", ""), True
_MIMO = {"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]}
_MIMO = _MIMO, _named("model.mtp.layers.{first}.", "enorm", "hnorm", "eh_proj", "final_layernorm")
_MIMO += "model.mtp.layers.{}.", ("post_attention_layernorm", "pre_mlp_layernorm"), False, 3, False
_NEMOTRON = (*_named("mtp.layers.0.", "enorm", "hnorm", "eh_proj"), "mtp.layers.1.final_layernorm"), "mtp.layers.{}."
_WITH_EXPERTS = {"first_k_dense_replace": 0}
FAMILIES = {
    "qwen3_next": Published("Qwen3NextConfig", {**_DELTA, **_EXPERTS}, *_QWEN),
    "qwen3_5": Published("Qwen3_5TextConfig", _DELTA, *_QWEN),
    "qwen3_5_moe": Published("Qwen3_5MoeTextConfig", {**_DELTA, **_EXPERTS}, *_QWEN),
    "deepseek_v3": Published(
        "DeepseekV3Config", {**_ROUTED, **_LATENT, "num_key_value_heads": 4}, _WITH_EXPERTS, *_DEEPSEEK
    ),
    "glm4_moe": Published("Glm4MoeConfig", {**_ROUTED, **_NORMED}, _WITH_EXPERTS, *_DEEPSEEK),
    "mimo_v2_flash": Published("MiMoV2FlashConfig", _SINKS, *_MIMO),
    "nemotron_h": Published("NemotronHConfig", _MAMBA, {"layers_block_type": ["full_attention", "moe"]}, *_NEMOTRON),
}


class Module(NamedTuple):
    """The parts of one module of a head."""

    embedding_norm: torch.Tensor
    hidden_norm: torch.Tensor
    projection: torch.Tensor
    network: PreTrainedModel  # its layers and its final norm


@torch.no_grad()
def _random_module(family: Published, seed: int) -> Module:
    generator = torch.Generator().manual_seed(seed)
    layers = 1 if "layers_block_type" not in family.module else 2
    settings = {**GROUPED, **family.settings, "num_hidden_layers": layers, **family.module}
    network = build(getattr(transformers, family.config)(**settings), seed)
    for name, weight in [*network.named_parameters(), *network.named_buffers()]:
        if weight.dim() == 1 and "inv_freq" not in name:  # norms, biases and sinks
            weight += 0.3 * torch.randn(weight.shape, generator=generator)
        elif "_proj" in name and ("attn" in name or "mixer" in name):  # so that each position counts
            weight *= 4
    norms = 0.3 * torch.randn(2, 32, generator=generator) + (not family.multiplies_by_1_and_w)
    return Module(*norms, 0.3 * torch.randn(32, 64, generator=generator), network)


def save_target(name: str, folder: Path, seed: int = 3) -> tuple[str, list[Module]]:
    """Save a target of a family with a random head; return its folder, and the head's modules."""
    family = FAMILIES[name]
    target = build(getattr(transformers, family.config)(**{**GROUPED, **family.settings}), seed)
    path, modules = save(target, folder), [_random_module(family, seed + 1 + k) for k in range(family.num_modules)]
    tensors = load_file(folder / "model.safetensors")
    first = target.config.num_hidden_layers if "shared_head" in family.names[3] else 0
    if first:  # such heads come with copies of the target's own
        tensors[f"model.layers.{first}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"model.layers.{first}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    for number, module in enumerate(modules):
        module.network.save_pretrained(folder / "module")
        saved = load_file(folder / "module" / "model.safetensors")
        for own, tensor in saved.items():
            if found := re.match(r"(?:model|backbone)\.layers\.(\d+)\.(.*)", own):
                at = family.layer.format(first + number + int(found.group(1)))
                tensors[at + found.group(2).replace(*family.renamed)] = tensor
        (final,) = (tensor for own, tensor in saved.items() if re.fullmatch(r"\w+\.norm(_f)?\.weight", own))
        for published, tensor in zip(family.names, (*module[:3], final), strict=True):
            tensors[published.format(first=first + number) + ".weight"] = tensor.clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return path, modules
