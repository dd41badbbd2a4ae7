"""A head that fills in blocks computes over slots what a textbook's would, and no row depends on another."""

from itertools import product

import pytest
import torch

from decoding.heads.dflash_head import DFlashHead
from decoding.heads.format.head_config import OF_DFLASH2, OF_SCALES
from tests.decoding.heads.block_reference import ReferenceBlocks
from tests.decoding.heads.tiny_heads import block_config, random_head, random_network

NUM_TOKENS = 14
_SLIDING = {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["sliding_attention"] * 2}
LAYERS = {
    "qwen3": {},
    "llama": {"model_type": "llama"},
    "biases": {"attention_bias": True},
    "sliding": _SLIDING,
    "one sliding": _SLIDING | {"layer_types": ["full_attention", "sliding_attention"]},
    "sliding without a window": _SLIDING | {"use_sliding_window": False},
    "sliding farther than any row": _SLIDING | {"sliding_window": 64},
}
VARIANTS = {
    "dflash": {},
    "from the anchor": {"sample_from_anchor": True},
    "seeing all in a window": {"sliding_window_non_causal": True},
    "dflash 2": {"kind": "dflash2"},
    "vanilla": {"kind": "dspark"},
    "gated": {"kind": "dspark", "markov_head_type": "gated", "confidence_head_with_markov": False},
    "rnn": {"kind": "dspark", "markov_head_type": "rnn"},
    "rnn behind the anchor": {"kind": "dspark", "markov_head_type": "rnn", "sample_from_anchor": False},
}
BACKBONES = [name for name, flags in VARIANTS.items() if flags.get("kind", "dflash2") == "dflash2"]
SPARKS = [name for name in VARIANTS if name not in BACKBONES]
CASES = [*product(LAYERS, BACKBONES), *product(["qwen3", "one sliding"], SPARKS)]


def settings_of(config) -> dict:
    """What a textbook's head must know."""
    names = ("block_size", "mask_token_id", "sample_from_anchor", "sliding_window_non_causal", "markov_rank")
    names += ("markov_head_type", "enable_confidence_head", "confidence_head_with_markov", *OF_DFLASH2, *OF_SCALES)
    return config.layer_config | {name: getattr(config, name) for name in names}


def text(seed: int = 0) -> tuple[list[int], torch.Tensor]:
    """Tokens, and features [N, A * E] as the target would hand them out."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(48, (NUM_TOKENS,), generator=generator).tolist()
    return tokens, torch.randn(NUM_TOKENS, 96, generator=generator)


def drafted(head, newest: list[int], starts: list[int], slots: list[int]) -> list[tuple[list[int], list[float]]]:
    """The tokens that the head drafts greedily in these slots, and their chances."""
    block = head.fill_in(torch.tensor(newest), starts, slots, head.block_tokens)
    tokens_N, tokens, chances = torch.tensor(newest), [], []
    for place in range(head.block_tokens):
        logits_N1V, chances_N, block = head.next_logits(block, place, tokens_N)
        tokens_N = logits_N1V[:, 0].argmax(-1)
        tokens.append(tokens_N)
        chances.append(torch.ones(len(slots)) if chances_N is None else chances_N)
    return [(t, c) for t, c in zip(torch.stack(tokens, 1).tolist(), torch.stack(chances, 1).tolist(), strict=True)]


@pytest.mark.parametrize(("layers", "variant"), CASES)
def test_a_draft_is_that_of_a_textbook_head_in_ragged_rows_and_behind_rejected_ones(layers, variant):
    config = block_config(draft_vocab_size=30, layer=LAYERS[layers], **VARIANTS[variant])
    head, tensors = random_head(config)
    reference = ReferenceBlocks(tensors, settings_of(config))
    (first, first_NX), (other, other_NX) = text(), text(1)
    first_NH, other_NH = head.project(first_NX), head.project(other_NX)
    head.allocate(3, 32)
    head.insert(torch.cat((first_NH[:9], other_NH[:3])), [0, 0], [9, 3], [2, 0])
    for length, other_length in ((10, 4), (12, 5), (14, 12)):
        found = drafted(head, [other[other_length - 1], first[length - 1]], [other_length - 1, length - 1], [0, 2])
        for (tokens, chances), row, features_NX, end in zip(
            found, (other, first), (other_NX, first_NX), (other_length, length), strict=True
        ):
            expected, expected_chances = reference.draft(row[:end], features_NX[: end - 1], head.block_tokens)
            assert tokens == expected
            assert chances == pytest.approx(expected_chances, abs=1e-5)
        # The target has read more than was accepted: what is behind belongs to rejected tokens.
        wrong_NH = torch.randn(4, 32)
        features_NH = torch.cat((other_NH[other_length - 1 : 12], first_NH[length - 1 : 13], wrong_NH))
        lengths = [13 - other_length, 18 - length]
        head.insert(features_NH, [other_length - 1, length - 1], lengths, [0, 2])


@torch.no_grad()
def test_a_permuted_vocabulary_drafts_the_same():
    config = block_config(kind="dspark")
    plain, _ = random_head(config)
    network, order_D = random_network(config), torch.randperm(48, generator=torch.Generator().manual_seed(0))
    for linear in (network.lm_head, network.markov_head.markov_w2):
        linear.weight.copy_(linear.weight[order_D].clone())
    tokens, features_NX = text()
    found = []
    for head in (plain, DFlashHead(network, order_D, (0, 1, 2))):
        head.allocate(1, 32)
        head.insert(head.project(features_NX[:8]), [0], [8], [0])
        newest_1 = torch.tensor(tokens[8:9])
        found.append(head.next_logits(head.fill_in(newest_1, [8], [0], 5), 0, newest_1)[0])
    torch.testing.assert_close(*found, atol=1e-5, rtol=0)
