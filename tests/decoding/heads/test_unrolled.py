"""What a head is trained to compute is what it computes when it drafts."""

import pytest
import torch

from decoding.heads.unrolled import unrolled
from tests.decoding.heads.reference import ReferenceHead
from tests.decoding.heads.tiny_heads import VARIANTS, head_config, random_network

NUM_TOKENS, NUM_STEPS = 9, 4


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_step_has_the_logits_of_a_draft_after_the_same_tokens(variant, model_type):
    """The reference reads the true pairs before a place, and then the true tokens beside its own states."""
    flags = VARIANTS[variant]
    network = random_network(head_config(layer={"model_type": model_type}, **flags))
    reference = ReferenceHead(
        {name: weight.detach() for name, weight in network.named_parameters()},
        {"rms_norm_eps": 1e-6, "num_features": 3, "head_dim": 8, **flags},
    )
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(48, (2, NUM_TOKENS), generator=generator)
    features_BTX = torch.randn(2, NUM_TOKENS, 96, generator=generator)
    with torch.no_grad():
        steps = list(unrolled(network, tokens_BT, features_BTX, NUM_STEPS))
    assert [logits.shape[1] for logits in steps] == [NUM_TOKENS - 1 - step for step in range(NUM_STEPS)]
    for row in range(2):
        tokens = tokens_BT[row].tolist()
        for last in range(NUM_TOKENS - 1):
            for position in range(last + 1):
                logits_D, state = reference.step(
                    tokens[position + 1], reference.fused(features_BTX[row, position]), position
                )
            for step in range(min(NUM_STEPS, NUM_TOKENS - 1 - last)):
                if step:
                    logits_D, state = reference.step(tokens[last + 1 + step], state, last + step)
                torch.testing.assert_close(steps[step][row, last], logits_D, atol=2e-5, rtol=0)
