"""A target and a draft of any size, without downloads, that agree at a chosen rate.

The acceptance rate is that of greedy decoding: how often the draft's next token is the target's, after text that the
target wrote. All weights are random; the head's scale gives the text the entropy of written language.

Two ways to make them agree. Where the draft is named by `draft_layers`, it is the target's own first layers, and what
the later layers add is scaled down. Where it has a shape of its own (`draft`: the sizes of published pairs), the target
holds the draft's weights in the corner of its own, surrounded by noise, and the noise is scaled. A target of Gemma 4's
shape has an assistant (`draft` has its sizes) that knows what the target would say without its layers, whose share is
scaled: the embeddings lie in as few dimensions as the assistant has.

Shapes: B texts, T tokens, V vocabulary, H hidden size.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from transformers import (
    Gemma4AssistantConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from decoding.heads.assistant_head import AssistantNetwork

_Pair = tuple[PreTrainedModel, PreTrainedModel, Callable[[float], None]]
_FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_5": (Qwen3_5TextConfig, Qwen3_5ForCausalLM),
    "gemma4": (Gemma4TextConfig, Gemma4ForCausalLM),
}
_LINEAR_HEAD_SIZE = 128  # of the layers with states, as in Qwen3.5


@dataclass(frozen=True)
class Shape:
    """The size of a pair. The draft is the target's first `draft_layers` layers, or has the shape `draft`."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocab: int
    draft_layers: int = 0
    head_size: int | None = None  # None: hidden / heads
    draft: "Shape | None" = None
    # qwen3 normalizes each head's queries and keys; in qwen3_5 three layers of four keep states; in gemma4 five of six
    # layers slide, and `draft` is an assistant
    family: Literal["llama", "qwen3", "qwen3_5", "gemma4"] = "llama"

    def config(self) -> PretrainedConfig:
        """Return the configuration of a model of this shape, which has no end token."""
        make_config, _ = _FAMILIES[self.family]
        return make_config(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_size or self.hidden // self.heads,
            intermediate_size=self.feed_forward,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
            eos_token_id=None,
            bos_token_id=None,
            **self._of_family(),
        )

    def _of_family(self) -> dict[str, int]:
        if self.family == "gemma4":
            sizes = dict.fromkeys(("hidden_size_per_layer_input", "vocab_size_per_layer_input"), 0)
            return {"global_head_dim": 2 * (self.head_size or self.hidden // self.heads), **sizes}
        if self.family != "qwen3_5":
            return {}
        num_heads = self.hidden // _LINEAR_HEAD_SIZE
        sizes = dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), _LINEAR_HEAD_SIZE)
        return {"linear_num_key_heads": num_heads // 2, "linear_num_value_heads": num_heads, **sizes}

    def network(self) -> PreTrainedModel:
        """Return a model of this shape, as transformers initializes it."""
        _, make_network = _FAMILIES[self.family]
        return make_network(self.config()).eval().requires_grad_(False)


# The sizes of Qwen3-0.6B, but for the head, which is not the embedding.
_QWEN_DRAFT = Shape(1024, 28, 16, 8, 3072, 151936, head_size=128, family="qwen3")
SHAPES = {
    "tiny": Shape(256, 8, 4, 2, 704, 4096, 1),
    "small": Shape(1024, 14, 16, 8, 2816, 8192, 1),  # 182 M, draft 29 M
    "medium": Shape(1024, 22, 16, 8, 2816, 8192, 1),  # 276 M, draft 29 M
    "hybrid": Shape(1024, 24, 16, 8, 2816, 8192, 4, family="qwen3_5"),  # 313 M, draft 66 M: four layers
    "gemma4": Shape(  # 312 M, assistant 12 M
        *(1024, 24, 8, 4, 2816, 8192),
        head_size=128,
        family="gemma4",
        draft=Shape(256, 4, 8, 4, 2048, 8192, head_size=128, family="gemma4"),
    ),
    "nested-tiny": Shape(128, 3, 8, 2, 256, 512, head_size=16, draft=Shape(64, 2, 4, 2, 96, 512, head_size=16)),
    "8b": Shape(4096, 36, 32, 8, 12288, 151936, head_size=128, draft=_QWEN_DRAFT, family="qwen3"),  # Qwen3-8B's sizes
}
_ENTROPY_STD = 3.4  # logits of this deviation over 8 k tokens have about 3 nats of entropy
_LARGEST_SCALE = 32.0  # where what is scaled is all there is
_PROMPT_LENGTH, _TEXT_LENGTH, _NUM_TEXTS = 32, 64, 16  # what a rate is measured on: 1024 tokens


def make_pair(
    folder: Path,
    shape: Shape,
    acceptance: float,
    dtype: torch.dtype,
    seed: int = 0,
    device: str = "cpu",
) -> float:
    """Write a pair to folder/target and folder/draft, and return its rate. Raises ValueError for an impossible one."""
    if not 0 < acceptance < 1:
        raise ValueError(f"an acceptance rate lies between 0 and 1, got {acceptance}")
    torch.manual_seed(seed)
    with torch.device(device):
        if shape.family == "gemma4" and shape.draft:
            target, draft, scale = _assisted(shape, shape.draft, dtype)
        else:
            target, draft, scale = _nested(shape, shape.draft, dtype, seed) if shape.draft else _layered(shape, dtype)
    generator = torch.Generator().manual_seed(1)
    prompts_BT = torch.randint(shape.vocab, (_NUM_TEXTS, _PROMPT_LENGTH), generator=generator).to(device)
    _find_scale(scale, target, draft, prompts_BT[: _NUM_TEXTS // 2], acceptance)
    found = greedy_acceptance(target, draft, prompts_BT)
    target.save_pretrained(folder / "target")
    if shape.family == "gemma4" and shape.draft:
        _save_assistant(target, shape, shape.draft, folder / "draft")
    else:
        draft.save_pretrained(folder / "draft")
    return found


def greedy_acceptance(target: PreTrainedModel, draft: PreTrainedModel, prompts_BT: torch.Tensor) -> float:
    """Return how often the draft's next token is the target's, over texts that the target writes after the prompts."""
    return _agreement(draft, _continued(target, prompts_BT), prompts_BT.shape[1])


def _layered(shape: Shape, dtype: torch.dtype) -> _Pair:
    """Return a target, a draft of its first layers, and what scales the later layers' share."""
    target = _random_model(shape).to(dtype)
    draft = replace(shape, layers=shape.draft_layers).network().to(dtype)
    draft.load_state_dict(target.state_dict(), strict=False)  # the first layers
    later = [p for layer in target.model.layers[shape.draft_layers :] for p in _outputs(layer)]
    full = [projection.weight.clone() for projection in later]

    def scale(size: float) -> None:
        for projection, weight in zip(later, full, strict=True):
            projection.weight.copy_(weight * size)

    return target, draft, scale


def _nested(shape: Shape, draft_shape: Shape, dtype: torch.dtype, seed: int) -> _Pair:
    """Return a target, a draft that it holds in the corner of its weights, and what scales the noise around it.

    Without noise the target's hidden state is the draft's followed by zeros; its norms divide by the root of all
    dimensions, so their weights are smaller by the root of the ratio. A norm of a head's queries or keys sees as many
    dimensions as the draft's.
    """
    group, draft_group = shape.heads // shape.kv_heads, draft_shape.heads // draft_shape.kv_heads
    if group < draft_group:
        raise ValueError("the target needs as many query heads for each KV head as the draft")
    if shape.family != draft_shape.family:
        raise ValueError(f"target and draft are of one family, got {shape.family} and {draft_shape.family}")
    head_of = [group * (head // draft_group) + head % draft_group for head in range(draft_shape.heads)]
    draft = _random_model(draft_shape).to(dtype)
    target = shape.network().to(dtype)
    queries = torch.arange(shape.heads * target.config.head_dim).view(shape.heads, -1)[head_of].flatten()
    inside = draft.state_dict()
    shrink = (draft_shape.hidden / shape.hidden) ** 0.5

    def scale(size: float) -> None:
        generator = torch.Generator(target.device).manual_seed(seed)
        for name, weight in target.state_dict().items():
            if "norm" in name:
                weight.fill_(1.0 if "q_norm" in name or "k_norm" in name else shrink)
                continue
            unit = _ENTROPY_STD if name == "lm_head.weight" else 1.0
            fan_in = 1 if "embed" in name else weight.shape[1]
            weight.normal_(std=size * unit / fan_in**0.5, generator=generator)
            if name in inside:  # its KV heads keep their query heads
                corner: list[torch.Tensor | slice] = [slice(0, length) for length in inside[name].shape]
                if "q_proj" in name or "o_proj" in name:
                    corner["o_proj" in name] = queries
                weight[tuple(corner)] += inside[name]

    return target, draft, scale


def _assisted(shape: Shape, draft_shape: Shape, dtype: torch.dtype) -> _Pair:
    """Return a target, a model that says what it would say without its layers, and what scales the layers' share."""
    target = _random_model(shape).to(dtype)
    embedding = target.model.embed_tokens.weight  # of one size with what a layer adds at scale 1
    embedding[:, : draft_shape.hidden].normal_(std=draft_shape.hidden**-0.5)
    embedding[:, draft_shape.hidden :] = 0
    without = replace(shape, layers=1).network().to(dtype)
    ends = {name: weight for name, weight in target.state_dict().items() if "layers" not in name}
    without.load_state_dict(ends, strict=False)

    def scale(size: float, model: PreTrainedModel = target) -> None:
        for layer in model.model.layers:
            layer.post_attention_layernorm.weight.fill_(size)
            layer.post_feedforward_layernorm.weight.fill_(size)

    scale(0.0, without)
    return target, without, scale


def _save_assistant(target: PreTrainedModel, shape: Shape, draft_shape: Shape, folder: Path) -> None:
    """Save an assistant that reads its target's embedding alone, though its layers compute all that they should."""
    config = Gemma4AssistantConfig(text_config=draft_shape.config(), backbone_hidden_size=shape.hidden)
    network = AssistantNetwork(config).requires_grad_(False)
    network.pre_projection.weight.copy_(torch.eye(draft_shape.hidden, 2 * shape.hidden))
    for layer in network.model.layers:
        layer.post_attention_layernorm.weight.zero_()
        layer.post_feedforward_layernorm.weight.zero_()
    network.model.norm.weight.fill_((shape.hidden / draft_shape.hidden) ** 0.5)
    network.lm_head.weight.copy_(target.lm_head.weight[:, : draft_shape.hidden])
    config.save_pretrained(folder)
    tensors = {name: tensor.to("cpu", target.dtype).contiguous() for name, tensor in network.state_dict().items()}
    tensors["model.embed_tokens.weight"] = tensors.pop("lm_head.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _outputs(layer: Any) -> tuple[torch.nn.Linear, torch.nn.Linear]:
    """Return what writes the share of a layer into the hidden state."""
    mixer = layer.self_attn.o_proj if hasattr(layer, "self_attn") else layer.linear_attn.out_proj
    return mixer, layer.mlp.down_proj


def _random_model(shape: Shape) -> PreTrainedModel:
    model = shape.network()
    model.lm_head.weight.normal_(std=_ENTROPY_STD / shape.hidden**0.5)
    model.model.embed_tokens.weight.normal_(std=1.0)
    for layer in model.model.layers:  # each layer moves the hidden state, so that the context matters
        for projection in _outputs(layer):
            projection.weight.normal_(std=1.0 / projection.in_features**0.5)
    return model


def _find_scale(
    scale: Callable[[float], None],
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompts_BT: torch.Tensor,
    acceptance: float,
) -> None:
    """Leave the target at the scale where the draft agrees with it this often.

    Searched on the draft's own texts, which do not change with the scale; then the goal is moved by how far off the
    rate on the target's texts is.
    """
    text_BT = _continued(draft, prompts_BT)
    goal = acceptance
    for _ in range(4):
        _bisect(scale, lambda: _agreement(target, text_BT, prompts_BT.shape[1]), goal)
        off = greedy_acceptance(target, draft, prompts_BT) - acceptance
        if abs(off) < 0.01:
            return
        goal = min(max(goal - off, 0.01), 0.995)


def _bisect(scale: Callable[[float], None], rate: Callable[[], float], goal: float) -> None:
    """Leave `scale` where the rate, which falls with it, is the goal."""
    low, high = 0.0, 1.0
    scale(high)
    while rate() > goal and high < _LARGEST_SCALE:
        low, high = high, 2 * high
        scale(high)
    for _ in range(9):
        middle = (low + high) / 2
        scale(middle)
        low, high = (middle, high) if rate() > goal else (low, middle)


@torch.inference_mode()
def _agreement(model: PreTrainedModel, text_BT: torch.Tensor, first: int) -> float:
    """Return how often the model's likeliest next token is the text's own, from position `first` on."""
    picks_BT = model(text_BT[:, :-1]).logits[:, first - 1 :].argmax(-1)
    return float((picks_BT == text_BT[:, first:]).float().mean())


@torch.inference_mode()
def _continued(model: PreTrainedModel, prompts_BT: torch.Tensor) -> torch.Tensor:
    """Return the prompts and what the model writes after them, greedily."""
    mask_BT = torch.ones_like(prompts_BT)
    text_BT: torch.Tensor = model.generate(
        prompts_BT, attention_mask=mask_BT, max_new_tokens=_TEXT_LENGTH, do_sample=False, pad_token_id=0
    )
    return text_BT


def cached_pair(
    cache: Path,
    size: str,
    acceptance: float,
    dtype: str,
    device: str = "cpu",
    seed: int = 0,
) -> Path:
    """Return the folder of such a pair, which is made if there is none of this family.

    pair.json, written last, says what it is.
    """
    folder = cache / f"{size}-{acceptance:g}-{dtype}-{seed}"
    shape = SHAPES[size]
    if describe_pair(folder).get("family") != shape.family:
        found = make_pair(folder, shape, acceptance, getattr(torch, dtype), seed, device)
        what = {"size": size, "family": shape.family, "dtype": dtype, "acceptance": found}
        (folder / "pair.json").write_text(json.dumps(what))
    return folder


def describe_pair(folder: Path) -> dict[str, Any]:
    """Return what pair.json says of a pair that was made; nothing of another."""
    description = folder / "pair.json"
    facts: dict[str, Any] = json.loads(description.read_text()) if description.exists() else {}
    return facts
