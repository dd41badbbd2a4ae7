"""Tiny heads with random weights, for the tiny Llama of `tests/decoding/tiny.py`."""

from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from decoding.drafters.block_drafter import DFlashDrafter
from decoding.heads.dflash_head import DFlashHead
from decoding.heads.eagle3_head import Eagle3Head
from decoding.heads.format.folder import Head, save_head
from decoding.heads.format.head_config import READ_PAIRS, HeadConfig, normalized
from decoding.heads.format.networks import DFlashNetwork, Eagle3Network, HeadNetwork
from decoding.network.language_model import LanguageModel
from decoding.network.slot_network import layers_to_read
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft
from tests.decoding.tiny import CONTEXT, VOCAB_SIZE, build, llama_config, save

HIDDEN_SIZE = 32
VARIANTS = {
    "original": {},
    "normed residual": {"norm_before_residual": True},
    "normed features": {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
    "eagle 3.1": {"fc_norm": True, "norm_output": True},
}


def head_config(
    layer_ids: tuple[int, ...] = (0, 1, 2),
    draft_vocab_size: int = VOCAB_SIZE,
    layer: dict | None = None,
    convention: str = "inputs",
    **flags,
) -> HeadConfig:
    """A head of one layer, which reads these layers' inputs."""
    layer_config = {
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": CONTEXT,
        **(layer or {}),
    }
    return HeadConfig(
        kind="eagle3",
        format="speculators",
        layer_config=normalized(layer_config),
        draft_vocab_size=draft_vocab_size,
        target_hidden_size=HIDDEN_SIZE,
        layer_ids=layer_ids,
        layer_ids_are=convention,
        num_speculative_tokens=3,
        target_name="someone/target",
        target_architectures=("LlamaForCausalLM",),
        **flags,
    )


def mask_config(*given, layer: dict | None = None, **flags) -> HeadConfig:
    """A P-EAGLE head of two layers, trained to draft four tokens."""
    config = head_config(*given, layer={"num_hidden_layers": 2, **(layer or {})}, **flags)
    return replace(config, kind="peagle", mask_token_id=3, num_speculative_tokens=4)


def block_config(
    layer_ids: tuple[int, ...] = (0, 1, 2),
    draft_vocab_size: int = VOCAB_SIZE,
    layer: dict | None = None,
    kind: str = "dflash",
    **flags,
) -> HeadConfig:
    """A head of two layers that fills in blocks; of DSpark and DFlash 2 it has what these add."""
    layer_config = {"model_type": "qwen3", "num_hidden_layers": 2, **(layer or {})}
    config = head_config(layer_ids, draft_vocab_size, layer_config)
    own = {"block_size": 5, "mask_token_id": 3, "num_speculative_tokens": 4}
    if kind == "dspark":
        own |= {"markov_rank": 8, "enable_confidence_head": True, "confidence_head_with_markov": True}
        own["sample_from_anchor"] = True
    if kind == "dflash2":
        own |= {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 6, "selector_top_k": 5}
        own |= {"input_embedding_scale": 1.5, "output_multiplier": 0.7, "final_logit_softcapping": 4.0}
    return replace(config, kind=kind, **{**own, **flags})


def head_for(target: LanguageModel, make=head_config, **more) -> HeadConfig:
    """A head for a target of any size, which reads its first layers and its last one's output."""
    num_layers = len(layers_to_read(target.network))
    config = make((0, 1, num_layers), target.vocab_size, **more)
    layers = {**config.layer_config, "vocab_size": target.vocab_size}
    return replace(config, layer_config=layers, target_hidden_size=target.hidden_size)


@torch.no_grad()
def random_network(config: HeadConfig, seed: int = 0) -> HeadNetwork:
    """A network with wide random weights: each of its parts moves the logits."""
    generator = torch.Generator().manual_seed(seed)
    network = Eagle3Network(config) if config.kind in READ_PAIRS else DFlashNetwork(config)
    for name, weight in network.named_parameters():
        weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2 + ("norm" in name))
    return network


def some_target_ids(config: HeadConfig, seed: int = 0) -> torch.Tensor | None:
    """Which of the target's ids the head has, ascending; None for all."""
    if config.draft_vocab_size == config.vocab_size:
        return None
    order = torch.randperm(config.vocab_size, generator=torch.Generator().manual_seed(seed))
    return order[: config.draft_vocab_size].sort().values


def random_head(config: HeadConfig, seed: int = 0) -> tuple[Eagle3Head | DFlashHead, dict[str, torch.Tensor]]:
    """A head, and the tensors that its folder would have."""
    network, ids_D = random_network(config, seed), some_target_ids(config)
    tensors = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    if ids_D is not None:
        tensors["d2t"] = ids_D - torch.arange(len(ids_D))
    assert config.layer_ids is not None
    head_class = Eagle3Head if config.kind in READ_PAIRS else DFlashHead
    return head_class(network, ids_D, config.layer_ids), tensors


class HesitantDrafter(DFlashDrafter):
    """Ends a row's draft where the head's confidence says so, also under a schedule with fixed lengths."""

    def propose(self, rows: Rows) -> Draft:
        return super().propose(replace(rows, min_survival=0.3))


@torch.no_grad()
def _target_of_pairs(*, reads_features: bool) -> PreTrainedModel:
    """A target whose next token depends on its newest one alone.

    With `reads_features` its last layer adds a number to every token, in a place where the embedding has none.
    """
    generator = torch.Generator().manual_seed(2)
    target = build(llama_config(), seed=1)
    embedding, output = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    for layer in target.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    if reads_features:
        embedding[:, -1], output[:, -1] = 0, 0
        target.model.layers[-1].self_attn.o_proj.weight[-1] = torch.randn(HIDDEN_SIZE, generator=generator)
    return target


@torch.no_grad()
def perfect_pair(*, reads_features: bool = False) -> tuple[PreTrainedModel, Head]:
    """A target whose next token depends on its newest one alone, and a head that knows it.

    The head's attention sees its own pair only (queries and keys are one constant, which the rotation turns away from
    all others) and hands on the token's embedding. With `reads_features` the target's last layer adds a number to every
    token, in a place where the embedding has none: a head that reads what enters that layer is right, and one that
    reads what leaves it is misled by that number.
    """
    generator = torch.Generator().manual_seed(2)
    target = _target_of_pairs(reads_features=reads_features)
    embedding, output = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    config = perfect_config((1,) if reads_features else (0, 1, 2))
    network = Eagle3Network(config)
    for weight in network.parameters():
        weight.zero_()
    (layer,) = network.layers
    if reads_features:
        network.fc.weight[:, -1] = torch.randn(HIDDEN_SIZE, generator=generator)
        layer.hidden_norm.weight.fill_(9)
    attention = layer.self_attn
    attention.q_proj.bias.fill_(32)
    attention.k_proj.bias.fill_(32)
    attention.v_proj.weight[:, :HIDDEN_SIZE] = torch.eye(HIDDEN_SIZE)
    attention.o_proj.weight.copy_(torch.eye(HIDDEN_SIZE))
    layer.input_layernorm.weight.fill_(1)
    network.norm.weight.copy_(target.model.norm.weight)
    network.embed_tokens.weight.copy_(embedding)
    network.lm_head.weight.copy_(output)
    return target, Head(config, {name: weight.detach().clone() for name, weight in network.named_parameters()})


@torch.no_grad()
def perfect_blocks(*, reads_features: bool = False, **flags) -> tuple[PreTrainedModel, Head]:
    """The target of a perfect pair, and a DSpark head whose Markov head knows it.

    Its layers add nothing to that, and with `reads_features` only as long as they read what enters the target's last
    layer: of what leaves it they are misled, by a number that every token has there.
    """
    generator = torch.Generator().manual_seed(3)
    target = _target_of_pairs(reads_features=reads_features)
    layer_config = {"num_hidden_layers": 1, "num_key_value_heads": 4}
    layer_ids = (1,) if reads_features else (0, 1, 2)
    config = block_config(layer_ids, layer=layer_config, kind="dspark", markov_rank=HIDDEN_SIZE, **flags)
    network = DFlashNetwork(config)
    for weight in network.parameters():
        weight.zero_()
    (layer,) = network.layers
    if reads_features:
        network.fc.weight[:, -1] = torch.randn(HIDDEN_SIZE, generator=generator)
        for weight in (network.hidden_norm.weight, network.norm.weight):
            weight.fill_(9)
        layer.self_attn.v_proj.weight.copy_(torch.eye(HIDDEN_SIZE))
        layer.self_attn.o_proj.weight.copy_(torch.eye(HIDDEN_SIZE))
        network.lm_head.weight.copy_(torch.randn(VOCAB_SIZE, HIDDEN_SIZE, generator=generator))
    network.markov_head.markov_w1.weight.copy_(target.model.norm(target.get_input_embeddings().weight))
    network.markov_head.markov_w2.weight.copy_(target.get_output_embeddings().weight)
    network.confidence_head.proj.bias.fill_(20)  # it is sure of everything
    return target, Head(config, {name: weight.detach().clone() for name, weight in network.named_parameters()})


def save_perfect_pair(root: Path, make=perfect_pair) -> tuple[str, str]:
    """Save both; return the paths of the target and of the head."""
    target, head = make()
    save_head(head, str(root / "head"), "speculators")
    return save(target, root / "target"), str(root / "head")


def perfect_config(layer_ids: tuple[int, ...], **flags) -> HeadConfig:
    """The configuration of a perfect head."""
    layer = {"num_key_value_heads": 4, "attention_bias": True}
    return head_config(layer_ids, layer=layer, norm_before_residual=True, **flags)
