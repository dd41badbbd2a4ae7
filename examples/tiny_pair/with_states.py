"""Trains a small pair whose layers keep states on the texts of the bundled pair, for `dray prove`.

    python -m examples.tiny_pair.with_states qwen3_5 --out DIR

It takes some minutes on two cores, and has the bundled pair's tokenizer. The draft is of the same family.
"""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from examples.tiny_pair.train import batches, next_token_logits, optimize, save

_PAIR = Path("examples/tiny_pair/target")
_STEPS, _LEARNING_RATE = 600, 3e-3


def _qwen3_5(hidden: int, layers: int) -> dict[str, Any]:
    heads = {f"linear_num_{each}_heads": hidden // 32 for each in ("key", "value")}
    sizes = {f"linear_{each}_head_dim": 32 for each in ("key", "value")}
    types = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * layers
    return {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": layers,
        "layer_types": types[4 - layers % 4 :][:layers],
        **heads,
        **sizes,
    }


def _nemotron_h(hidden: int, layers: int) -> dict[str, Any]:
    types = ["linear_attention", "mlp", "full_attention", "mlp"] * layers
    sizes = {
        "mamba_num_heads": hidden // 16,
        "mamba_head_dim": 32,
        "ssm_state_size": 32,
        "n_groups": 1,
        "chunk_size": 64,
    }
    return {"model_type": "nemotron_h", "layers_block_type": types[: 2 * layers], **sizes}


def _lfm2(hidden: int, layers: int) -> dict[str, Any]:
    types = ["conv", "full_attention"] * layers
    return {"model_type": "lfm2", "num_hidden_layers": layers, "layer_types": types[:layers]}


def _gemma4(hidden: int, layers: int) -> dict[str, Any]:
    types = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * layers
    no_layer_inputs = dict.fromkeys(("hidden_size_per_layer_input", "vocab_size_per_layer_input"), 0)
    sizes = {"num_hidden_layers": layers, "layer_types": types[4 - layers % 4 :][:layers], "sliding_window": 128}
    return {"model_type": "gemma4_text", "global_head_dim": 64, **sizes, **no_layer_inputs}


FAMILIES = {"qwen3_5": _qwen3_5, "nemotron_h": _nemotron_h, "lfm2": _lfm2, "gemma4": _gemma4}


def _model(options: Mapping[str, Any], hidden: int, vocab_size: int, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    sizes = dict.fromkeys(("num_attention_heads", "num_key_value_heads"), hidden // 32)
    sizes |= {"hidden_size": hidden, "intermediate_size": 3 * hidden, "head_dim": 32}
    sizes |= {"vocab_size": vocab_size, "max_position_embeddings": 8192}
    ids = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0, "tie_word_embeddings": True}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**options, **sizes, **ids))


def train(family: str, name: str, out: Path, steps: int = _STEPS) -> None:
    """Train the target or the draft of a family, and write it into the folder `out`."""
    hidden, layers, seed = {"target": (128, 4, 1), "draft": (64, 2, 2)}[name]
    tokenizer = AutoTokenizer.from_pretrained(_PAIR)
    model: Any = _model(FAMILIES[family](hidden, layers), hidden, len(tokenizer), seed)

    def loss(ids_BT: torch.Tensor, is_real_BT: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(next_token_logits(model, ids_BT, is_real_BT), ids_BT[:, 1:][is_real_BT[:, 1:]])

    print(f"{name} ({family})", flush=True)
    optimize(model, batches(tokenizer, name, steps), steps, _LEARNING_RATE, loss)
    save(model, tokenizer, out)


def main() -> None:
    """Train and write both models under --out."""
    parser = argparse.ArgumentParser(description="Train a pair whose layers keep states.")
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--out", type=Path, required=True, help="folder for target/ and draft/")
    parser.add_argument("--steps", type=int, default=_STEPS)
    asked, started = parser.parse_args(), time.perf_counter()
    for name in ("target", "draft"):
        train(asked.family, name, asked.out / name, asked.steps)
    print(f"took {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
