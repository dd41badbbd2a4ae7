"""Tiny Gemma 4 targets, their assistants, and what transformers' own class of assistants drafts, a row at a time."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4TextConfig,
    Gemma4UnifiedAssistantConfig,
    Gemma4UnifiedTextConfig,
    PreTrainedModel,
)

from tests.decoding.tiny import CONTEXT, VOCAB_SIZE, build, save

SLIDING, FULL = "sliding_attention", "full_attention"
COMMON = {
    "vocab_size": VOCAB_SIZE,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.15,
    "sliding_window": 6,  # shorter than the texts
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
OWN = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "layer_types": [SLIDING, SLIDING, FULL]}
_SMALL = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB_SIZE, "num_kv_shared_layers": 2}
_LARGE = {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "head_dim": 16, "global_head_dim": 32}
# E2B and E4B: later layers share keys, centroids. 26B and 31B: none do, one matrix for keys and values. 12B: unified.
KINDS = ("small", "large", "unified")


@contextmanager
def buildable() -> Iterator[None]:
    """Let transformers build a model in which all layers read another one's keys: its check refuses that."""
    with pytest.MonkeyPatch.context() as patched:
        for config in (Gemma4TextConfig, Gemma4UnifiedTextConfig):
            modes = config.kv_sharing_modes

            def all_or(self, modes=modes):
                is_assistant = self.num_kv_shared_layers == self.num_hidden_layers
                return ["reuse"] * self.num_hidden_layers if is_assistant else modes.fget(self)

            patched.setattr(config, "kv_sharing_modes", property(all_or))
        yield


def target_of(kind: str, seed: int = 1) -> PreTrainedModel:
    """A target; the last layers that own keys are 2 (sliding) and 3 (full)."""
    more = {"hidden_size": 32, "intermediate_size": 48}
    if kind == "small":
        more |= {"num_hidden_layers": 6, "layer_types": [SLIDING, FULL] * 3, **_SMALL}
        return build(Gemma4TextConfig(**COMMON | more), seed)
    more |= {"num_hidden_layers": 4, "layer_types": [SLIDING, SLIDING, SLIDING, FULL], **_LARGE}
    if kind == "unified":
        return build(Gemma4UnifiedTextConfig(**COMMON | more), seed)
    return build(Gemma4TextConfig(**COMMON | more, hidden_size_per_layer_input=0), seed)


@torch.no_grad()
def assistant_of(kind: str, seed: int = 2) -> PreTrainedModel:
    """An assistant with wide random weights: each of its parts moves the logits."""
    text = {**COMMON, **OWN, "num_kv_shared_layers": 3, **({} if kind == "small" else _LARGE)}
    if kind == "unified":
        config = Gemma4UnifiedAssistantConfig(text_config=Gemma4UnifiedTextConfig(**text), backbone_hidden_size=32)
    else:
        text |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
        ordered = {"use_ordered_embeddings": True, "num_centroids": 8, "centroid_intermediate_top_k": 3}
        more = ordered if kind == "small" else {}
        config = Gemma4AssistantConfig(text_config=Gemma4TextConfig(**text), backbone_hidden_size=32, **more)
    generator = torch.Generator().manual_seed(seed)
    with buildable():
        model = AutoModelForCausalLM.from_config(config).eval()
    for name, tensor in model.state_dict().items():
        if name.endswith("token_ordering"):
            tensor.copy_(torch.randperm(VOCAB_SIZE, generator=generator))
        else:
            centre = 1.0 if "norm" in name or "scalar" in name else 0.0
            tensor.copy_(0.3 * torch.randn(tensor.shape, generator=generator) + centre)
    return model


def save_pair(kind: str, root: Path) -> tuple[str, str]:
    """Save a target and its assistant; return their folders."""
    model = assistant_of(kind)
    model.save_pretrained(root / "assistant")
    return save(target_of(kind), root / "target"), str(root / "assistant")


def change(folder: str, fields: dict) -> None:
    """Write other fields into a config.json, and into what is inside of it."""
    file = Path(folder) / "config.json"
    said = json.loads(file.read_text())
    for name, value in fields.items():
        said[name] = said[name] | value if isinstance(said.get(name), dict) else value
    file.write_text(json.dumps(said))


@torch.inference_mode()
def drafts_of(assistant: Gemma4AssistantForCausalLM, target: PreTrainedModel, tokens: list[int], num: int) -> list[int]:
    """What the assistant drafts greedily behind a text, by transformers' classes.

    The target has read all tokens but the newest. Its keys are those of layers 2 and 3, which transformers itself
    hands out where later layers share them.
    """
    cache = DynamicCache()
    read = target(
        torch.tensor([tokens[:-1]]), past_key_values=cache, output_hidden_states=True, return_shared_kv_states=True
    )
    keys = {kind: (cache.layers[index].keys, cache.layers[index].values) for kind, index in ((SLIDING, 2), (FULL, 3))}
    for kind, pair in (read.shared_kv_states or {}).items():
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(keys[kind], pair, strict=True))
    newest, state, drafted = tokens[-1], read.hidden_states[-1][:, -1:], []
    for _ in range(num):
        embedded = target.get_input_embeddings()(torch.tensor([[newest]]))
        found = assistant(
            inputs_embeds=torch.cat([embedded, state], dim=-1),
            position_ids=torch.tensor([[len(tokens) - 1]]),
            shared_kv_states=keys,
        )
        newest, state = int(found.logits.argmax()), found.last_hidden_state
        drafted.append(newest)
    return drafted


@torch.no_grad()
def knowing_pair(root: Path) -> tuple[str, str]:
    """Save a target whose layers say little, and an assistant that knows what it says without them."""
    target, assistant = target_of("large"), assistant_of("large")
    size = assistant.config.text_config.hidden_size
    target.get_input_embeddings().weight[:, size:] = 0
    for layer in target.model.layers:
        layer.post_attention_layernorm.weight.fill_(0.1)
        layer.post_feedforward_layernorm.weight.fill_(0.1)
    assistant.pre_projection.weight.copy_(torch.eye(size, 2 * 32))
    for layer in assistant.model.layers:
        layer.post_attention_layernorm.weight.zero_()
        layer.post_feedforward_layernorm.weight.zero_()
        layer.layer_scalar.fill_(1)
    assistant.model.norm.weight.fill_((32 / size) ** 0.5)
    assistant.lm_head.weight.copy_(target.get_output_embeddings().weight[:, :size])
    assistant.save_pretrained(root / "assistant")
    return save(target, root / "target"), str(root / "assistant")
