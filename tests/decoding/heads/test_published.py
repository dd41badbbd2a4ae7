"""Configurations of heads that are published, in full size: what is understood, and the tensors that they must have."""

import json
from math import prod
from pathlib import Path
from typing import Any

from decoding.heads.format.eagle import read_eagle, write_eagle
from decoding.heads.format.speculators import read_speculators, write_speculators
from decoding.heads.format.tensors import expected_tensors

_FOLDER = Path(__file__).parent / "published"


def _published(name: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text())
    return fields


def _shapes(config: Any) -> dict[str, tuple[int, ...]]:
    return {name: each.shape for name, each in expected_tensors(config).items()}


_LLAMA_8B = {
    "fc.weight": (4096, 3 * 4096),
    "layers.0.hidden_norm.weight": (4096,),
    "layers.0.input_layernorm.weight": (4096,),
    "layers.0.post_attention_layernorm.weight": (4096,),
    "layers.0.self_attn.q_proj.weight": (4096, 8192),
    "layers.0.self_attn.k_proj.weight": (1024, 8192),
    "layers.0.self_attn.v_proj.weight": (1024, 8192),
    "layers.0.self_attn.o_proj.weight": (4096, 4096),
    "layers.0.mlp.gate_proj.weight": (14336, 4096),
    "layers.0.mlp.up_proj.weight": (14336, 4096),
    "layers.0.mlp.down_proj.weight": (4096, 14336),
    "norm.weight": (4096,),
    "lm_head.weight": (32000, 4096),
    "embed_tokens.weight": (128256, 4096),
    "d2t": (32000,),
    "t2d": (128256,),
}


def test_redhats_eagle3_for_llama() -> None:
    config = read_speculators(_published("redhat_llama_eagle3"))
    assert (config.kind, config.draft_vocab_size, config.vocab_size) == ("eagle3", 32000, 128256)
    assert config.norm_before_residual
    assert (config.norm_before_fc, config.fc_norm, config.norm_output) == (False, False, False)
    assert (config.target_name, config.num_speculative_tokens) == ("meta-llama/Llama-3.1-8B-Instruct", 3)
    assert config.layer_config["dtype"] == "bfloat16"
    assert config.layer_config["rope_parameters"] == {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    }
    assert config.layer_ids is None
    assert config.settle_layer_ids(32).layer_ids_as("inputs") == (2, 16, 29)
    assert _shapes(config) == _LLAMA_8B


def test_yuhuilis_eagle3_for_llama() -> None:
    config = read_eagle(_published("yuhuili_llama_eagle3"))
    assert (config.kind, config.draft_vocab_size, config.norm_before_residual) == ("eagle3", 32000, False)
    assert (config.layer_config["dtype"], config.layer_config["head_dim"]) == ("float16", 128)
    assert config.layer_config["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}
    settled = config.settle_layer_ids(32)
    assert (settled.layer_ids_as("inputs"), settled.layer_ids_as("outputs")) == ((2, 16, 29), (1, 15, 28))
    assert _shapes(config) == _LLAMA_8B
    assert settled.assumed == (
        "norm_before_residual: false, as in EAGLE's own code",
        "speculative_tokens: 3, which this format does not say",
        "layer ids: [2, 16, 29] as inputs, the default for a target with 32 layers",
    )


def test_zlabs_dflash_for_qwen3() -> None:
    config = read_eagle(_published("zlab_qwen3_dflash"))
    assert (config.kind, config.block_size, config.num_speculative_tokens) == ("dflash", 16, 15)
    assert (config.mask_token_id, config.draft_vocab_size, config.sample_from_anchor) == (151669, 151936, False)
    assert config.layer_ids_as("inputs") == (2, 10, 18, 26, 34)
    shapes = _shapes(config)
    assert shapes["fc.weight"] == (4096, 5 * 4096)
    assert shapes["layers.4.self_attn.k_proj.weight"] == (1024, 4096)
    assert shapes["layers.4.self_attn.q_norm.weight"] == (128,)
    required = {name: each for name, each in expected_tensors(config).items() if not each.is_optional}
    assert not required.keys() & {"lm_head.weight", "embed_tokens.weight", "d2t"}
    assert sum(prod(each.shape) for each in required.values()) == 1_048_626_432  # 2.1 GB in bfloat16


def test_published_configurations_come_back_from_the_format_that_they_were_read_from() -> None:
    for name in ("yuhuili_llama_eagle3", "zlab_qwen3_dflash"):
        config = read_eagle(_published(name)).settle_layer_ids(32 if "llama" in name else 36)
        back = read_eagle(write_eagle(config, "float16")).settle_layer_ids(32 if "llama" in name else 36)
        assert back.layer_ids_as("inputs") == config.layer_ids_as("inputs")
        assert back.kind == config.kind
    config = read_speculators(_published("redhat_llama_eagle3"))
    assert read_speculators(write_speculators(config, "bfloat16")) == config
