"""The head over slots computes what a textbook's would, and no row of it depends on another."""

import pytest
import torch

from tests.decoding.heads.reference import ReferenceHead
from tests.decoding.heads.tiny_heads import VARIANTS, head_config, random_head

NUM_TOKENS = 10
LAYERS = {
    "llama": {},
    "qwen3": {"model_type": "qwen3"},
    "sliding": {"sliding_window": 4, "layer_types": ["sliding_attention"]},
}


def pairs(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [N], and features [N, A * E] as the target would hand them out."""
    generator = torch.Generator().manual_seed(seed)
    tokens_N = torch.randint(48, (NUM_TOKENS,), generator=generator)
    return tokens_N, torch.randn(NUM_TOKENS, 96, generator=generator)


def spread(logits_D: torch.Tensor, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits over the target's ids: -inf where the head has none."""
    logits_V = torch.full((48,), float("-inf"))
    logits_V[torch.arange(len(logits_D)) + tensors["d2t"]] = logits_D
    return logits_V


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layers", LAYERS)
def test_logits_are_those_of_a_textbook_head_in_the_first_step_and_in_later_ones(variant, layers):
    layer, flags = LAYERS[layers], VARIANTS[variant]
    head, tensors = random_head(head_config(draft_vocab_size=24, layer=layer, **flags))
    settings = {"rms_norm_eps": 1e-6, "num_features": 3, "head_dim": 8, **flags}
    reference = ReferenceHead(tensors, settings | {k: v for k, v in layer.items() if k == "sliding_window"})
    tokens_N, features_NX = pairs()
    head.allocate(3, 32)
    state_1H = head.read(tokens_N[1:], head.project(features_NX)[:-1], ([0], [NUM_TOKENS - 1], [1]))[-1:]
    for position, token in enumerate(tokens_N[1:].tolist()):
        expected_D, expected_state = reference.step(token, reference.fused(features_NX[position]), position)
    for step in range(3):
        logits_11V, carried_1H = head.logits(state_1H)
        torch.testing.assert_close(logits_11V[0, 0], spread(expected_D, tensors), atol=2e-5, rtol=0)
        token, position = 5 + step, NUM_TOKENS - 1 + step
        state_1H = head.read(torch.tensor([token]), carried_1H, ([position], [1], [1]))
        expected_D, expected_state = reference.step(token, expected_state, position)


def test_a_row_is_the_same_alone_and_beside_ragged_rows_and_in_pieces():
    head, _ = random_head(head_config())
    (first_N, features_NX), (other_N, others_NX) = pairs(), pairs(1)
    states_NH, others_NH = head.project(features_NX), head.project(others_NX)
    head.allocate(3, 32)
    alone_NH = head.read(first_N[1:], states_NH[:-1], ([0], [9], [0]))
    head.allocate(3, 32)
    tokens_N = torch.cat((other_N[1:4], first_N[1:6]))
    head.read(tokens_N, torch.cat((others_NH[:3], states_NH[:5])), ([0, 0], [3, 5], [0, 2]), is_wanted=False)
    tokens_N = torch.cat((other_N[4:5], first_N[6:]))
    both_NH = head.read(tokens_N, torch.cat((others_NH[3:4], states_NH[5:-1])), ([3, 5], [1, 4], [0, 2]))
    torch.testing.assert_close(both_NH[-4:], alone_NH[-4:], atol=1e-5, rtol=0)
