"""LoRA adapters of a model, made on the spot, which change its texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from decoding.checkpoint import model_files


def save_adapter(base: str | Path, folder: Path, seed: int, scale: float = 0.3) -> str:
    """Save an adapter of the model in `base` with random weights of this seed; return its folder."""
    peft = pytest.importorskip("peft")
    network = AutoModelForCausalLM.from_pretrained(base)
    config = peft.LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(network, config)
    torch.manual_seed(seed)
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=scale)
    adapted.save_pretrained(str(folder))
    return str(folder)


def keep_merged_models_in(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Let models be merged under `folder`, and not in the user's cache."""
    patch.setattr(model_files, "HF_HOME", str(folder))
