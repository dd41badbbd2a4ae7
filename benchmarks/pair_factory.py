"""A target and a draft of any size, without downloads, that agree at a chosen rate.

`python -m benchmarks.pair_factory FOLDER --size small --acceptance 0.8`

The target is a Llama with random weights; the draft is its own first layers. What the later layers add is scaled down
until the draft agrees with the target as often as asked. The head's scale sets the entropy of the text to that of
written language, so that sampling does not fall into loops and top-p has something to cut.
"""

import argparse
import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from decoding.noise import Stream, gumbel


@dataclass(frozen=True)
class Shape:
    """The size of a pair. The draft is the target's first `draft_layers` layers."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocab: int
    draft_layers: int


SHAPES = {
    "tiny": Shape(256, 8, 4, 2, 704, 4096, 1),
    "small": Shape(1024, 14, 16, 8, 2816, 8192, 1),  # about 160 M
    "medium": Shape(1024, 24, 16, 8, 2816, 8192, 2),  # about 270 M
}
_ENTROPY_STD = 3.4  # logits of this deviation over 8 k tokens have about 3 nats of entropy


def make_pair(folder: Path, shape: Shape, acceptance: float, dtype: torch.dtype, seed: int = 0) -> float:
    """The acceptance rate measured on the pair that now lies in folder/target and folder/draft."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        eos_token_id=None,
        bos_token_id=None,
    )
    target = LlamaForCausalLM(config).eval().requires_grad_(False)
    target.lm_head.weight.normal_(std=_ENTROPY_STD / shape.hidden**0.5)
    target.model.embed_tokens.weight.normal_(std=1.0)
    for layer in target.model.layers:  # each layer moves the hidden state, so that the context matters
        for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
            projection.weight.normal_(std=1.0 / projection.in_features**0.5)
    draft = _first_layers(target, shape.draft_layers)
    later = list(target.model.layers[shape.draft_layers :])
    full = [(layer.self_attn.o_proj.weight.clone(), layer.mlp.down_proj.weight.clone()) for layer in later]
    low, high, found = 0.0, 2.0, 1.0
    for _ in range(12):
        scale = (low + high) / 2
        for layer, (attention, feed_forward) in zip(later, full, strict=True):
            layer.self_attn.o_proj.weight.copy_(attention * scale)
            layer.mlp.down_proj.weight.copy_(feed_forward * scale)
        found = measured_acceptance(target, draft)
        low, high = (scale, high) if found > acceptance else (low, scale)
    target.to(dtype).save_pretrained(folder / "target")
    draft.to(dtype).save_pretrained(folder / "draft")
    return found


@torch.inference_mode()
def measured_acceptance(target: LlamaForCausalLM, draft: LlamaForCausalLM, length: int = 64, rows: int = 8) -> float:
    """How often both pick the same token under the same noise at temperature 1, on random contexts."""
    generator = torch.Generator().manual_seed(1)
    tokens_BT = torch.randint(target.config.vocab_size, (rows, length), generator=generator)
    keys_B, positions_BT = torch.arange(rows), torch.arange(length).expand(rows, -1)
    noise_BTV = gumbel(keys_B, positions_BT, target.config.vocab_size, Stream.SHARED)
    picks = [(model(tokens_BT).logits.float() + noise_BTV).argmax(-1) for model in (target, draft)]
    return float((picks[0] == picks[1]).float().mean())


def _first_layers(target: LlamaForCausalLM, num_layers: int) -> LlamaForCausalLM:
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = num_layers
    draft = LlamaForCausalLM(config).eval().requires_grad_(False)
    wanted = draft.state_dict().keys()
    draft.load_state_dict({name: weight for name, weight in target.state_dict().items() if name in wanted})
    return draft


def main() -> None:
    """Make one pair and print what it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SHAPES, default="small")
    parser.add_argument("--acceptance", type=float, default=0.8)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    options = parser.parse_args()
    found = make_pair(options.folder, SHAPES[options.size], options.acceptance, getattr(torch, options.dtype))
    print(f"{options.folder}: {options.size}, {options.dtype}, coupled acceptance at temperature 1: {found:.3f}")


if __name__ == "__main__":
    main()
