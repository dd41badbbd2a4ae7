"""What vLLM 0.33 reads in a head's folder is there.

The lists are those of its readers (vllm/transformers_utils/configs/speculators/base.py and algos.py,
vllm/model_executor/models/llama_eagle3.py and qwen3_dflash.py, vllm/config/speculative.py), as the version 0.33.0 has
them. A field counts only with a value: vLLM's defaults differ from those of speculators.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from decoding.heads.format.folder import save_head
from decoding.heads.format.head_config import OF_DFLASH2
from tests.decoding.heads.made_up import KINDS, NORMS, head

_OF_PAIRS = ("eagle_aux_hidden_state_layer_ids", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_OF_BLOCKS = ("aux_hidden_state_layer_ids", "mask_token_id", "block_size", "sample_from_anchor")
FIELDS: dict[str, tuple[str, ...]] = {
    "eagle3": _OF_PAIRS,
    "peagle": (*_OF_PAIRS, "mask_token_id"),
    "dflash": (*_OF_BLOCKS, "sliding_window_non_causal"),
    "dflash2": (*_OF_BLOCKS, "sliding_window_non_causal", *OF_DFLASH2),
    "dspark": (
        *_OF_BLOCKS, "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov",
    ),
}  # fmt: skip
# What vLLM's loaders rename or stack, and so what a file must call it.
TENSORS: dict[str, tuple[str, ...]] = {
    "eagle3": ("d2t", "fc.weight", "layers.0.hidden_norm.weight", "norm.weight", "lm_head.weight"),
    "peagle": ("d2t", "fc.weight", "mask_hidden", "layers.0.hidden_norm.weight", "layers.1.mlp.up_proj.weight"),
    "dflash": ("fc.weight", "hidden_norm.weight", "layers.0.self_attn.q_norm.weight", "norm.weight"),
    "dflash2": ("layers.0.attention_conv.base_kernel", "candidate_selector.predecessor_codebook"),
    "dspark": ("fc.weight", "markov_head.markov_w1.weight", "markov_head.markov_w2.weight", "lm_head.weight", "d2t"),
}
_STACKED = [f"self_attn.{part}_proj.weight" for part in "qkv"] + ["mlp.gate_proj.weight", "mlp.up_proj.weight"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_and_every_tensor_that_vllm_needs_is_written(kind: Any, tmp_path: Path) -> None:
    save_head(head(kind), str(tmp_path / "head"), "speculators")
    said = json.loads((tmp_path / "head" / "config.json").read_text())
    assert said["speculators_model_type"] == kind
    assert isinstance(said["speculators_config"]["proposal_methods"][0]["speculative_tokens"], int)
    assert said["speculators_config"]["verifier"]["name_or_path"] == "someone/target"
    assert isinstance(said["transformer_layer_config"], dict)
    assert said["transformer_layer_config"]["model_type"] in ("llama", "qwen3")
    assert said["transformer_layer_config"]["vocab_size"] == 128
    assert [name for name in ("draft_vocab_size", *FIELDS[kind]) if said.get(name) is None] == []
    tensors = load_file(tmp_path / "head" / "model.safetensors")
    stacked = [f"layers.0.{part}" for part in _STACKED]
    assert [name for name in (*TENSORS[kind], *stacked) if name not in tensors] == []


@pytest.mark.parametrize("norms", NORMS)
def test_the_norms_of_an_eagle3_head_are_said_and_stored(norms: str, tmp_path: Path) -> None:
    save_head(head("eagle3", **NORMS[norms]), str(tmp_path / "head"), "speculators")
    said = json.loads((tmp_path / "head" / "config.json").read_text())
    tensors = load_file(tmp_path / "head" / "model.safetensors")
    assert said["norm_before_fc"] == ("input_norm.weight" in tensors) == (norms == "norm_before_fc")
    assert said["fc_norm"] == ("fc_norm.2.weight" in tensors) == (norms == "fc_norm")
    assert said["norm_output"] == (norms != "plain")


def test_a_wider_target_is_said(tmp_path: Path) -> None:
    save_head(head("eagle3", target_hidden_size=96), str(tmp_path / "head"), "speculators")
    assert json.loads((tmp_path / "head" / "config.json").read_text())["target_hidden_size"] == 96
