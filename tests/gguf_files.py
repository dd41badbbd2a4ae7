"""GGUF files of tiny random models, written with the package gguf as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerFast

ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "gemma3_text": gguf.MODEL_ARCH.GEMMA3}
_CONTROL, _NORMAL = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
QuantizationType = gguf.GGMLQuantizationType


def save_gguf(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    path: Path,
    kind: QuantizationType = QuantizationType.F32,
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    left_out: str | None = None,
) -> str:
    """Write a model with a byte-level tokenizer; `kind` is that of its matrices, `change` may add to the file."""
    config = network.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_config(writer, config)
    _add_tokenizer(writer, tokenizer, "qwen2" if config.model_type == "qwen2" else "gpt-2")
    change(writer)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, tensor in network.state_dict().items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        if (name == "lm_head.weight" and config.tie_word_embeddings) or stored == left_out:
            continue
        values = _as_stored(name, tensor.float().numpy(), config)
        is_matrix = values.ndim > 1
        data = gguf.quants.quantize(values, kind) if is_matrix else values
        writer.add_tensor(stored, data, raw_dtype=kind if is_matrix else QuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def _add_config(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(head_dim)
    if config.model_type == "gemma3_text":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_sliding_window(config.sliding_window)
    else:
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerFast, pre: str) -> None:
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)  # type: ignore[arg-type]
    special = set(tokenizer.all_special_tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL if token in special else _NORMAL for token in tokens])
    core = json.loads(tokenizer.backend_tokenizer.to_str())
    writer.add_token_merges([" ".join(merge) for merge in core["model"]["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)


def _as_stored(name: str, values: np.ndarray, config: Any) -> np.ndarray:
    """Return a tensor as the converter of llama.cpp stores it: rotary halves interleaved, and norms of Gemma plus 1."""
    if config.model_type == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)
    return values + 1 if config.model_type == "gemma3_text" and "norm" in name else values
