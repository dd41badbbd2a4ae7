"""Of a mixture of experts a token reads the experts that work on it, and all other weights."""

import json

import pytest
import torch
from safetensors.torch import save_file

from decoding.checkpoint.expert_weights import num_bytes_read


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}, 6),
        ({"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}, 6),
        ({"model_type": "deepseek_v3", "n_routed_experts": 8, "num_experts_per_tok": 1}, 5),
        ({"model_type": "qwen3"}, 12),
    ],
)
def test_a_token_reads_the_experts_that_work_on_it_and_all_else(fields, expected, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    kib = torch.zeros(256, 1024)  # and its head of some bytes
    tensors = {f"model.layers.0.mlp.experts.{number}.up_proj.weight": kib.clone() for number in range(8)}
    tensors |= {f"model.layers.0.mlp.{name}.weight": kib.clone() for name in ("shared_experts.up_proj", "gate")}
    tensors |= {"lm_head.weight": kib.clone(), "model.embed_tokens.weight": kib.clone()}
    save_file(tensors, tmp_path / "model.safetensors")
    assert num_bytes_read(tmp_path) / 2**20 == pytest.approx(expected, rel=0.01)
