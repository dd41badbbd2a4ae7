"""Layers on a GPU's kernels hand out their stream and compute the same, whether the host or the device plans."""

import copy

import pytest
import torch

from decoding.cache.features import Features, FeatureTap
from decoding.drafters.base import NoDrafter
from decoding.engine.rounds.lane import can_be_recorded
from decoding.network.language_model import LanguageModel
from decoding.sampling.rules import COUPLED
from tests.decoding.fused.test_graphs import num_recorded, with_graphs
from tests.decoding.tapped import EVERY_BT, TOKENS_BT, Kept, assert_equal, check_tap, expected
from tests.decoding.tiny import build, llama_config, random_prompts

IDS = (2, 0, 1)


@pytest.fixture(scope="module")
def plain():
    return build(llama_config(), seed=1)


def on_kernels(plain) -> LanguageModel:
    model = LanguageModel(copy.deepcopy(plain), frozenset())
    model.exact = "on"
    model.speed_up()
    assert model.fused is not None
    assert model.fused.is_on_gpu
    return model


def test_a_tap_changes_no_bit_and_gets_the_stream(plain):
    model = on_kernels(plain)
    check_tap(model, plain, IDS, tolerance=2e-5)


@pytest.mark.usefixtures("gpu")
def test_replayed_forwards_hand_out_the_same_as_plain_ones(plain):
    model, kept = on_kernels(plain), Kept((1, 2))
    graphs = with_graphs(model)
    model.hand_out(kept.tap)
    (text,) = random_prompts((9,))
    model.allocate(3, 20)
    model.prefill([0, 2], [text, text[:3]])
    for row in TOKENS_BT[:, :2].tolist():
        model.forward([9], torch.tensor([row]), EVERY_BT[:1, :2])
        tokens = [*text, *row]
        torch.testing.assert_close(kept.of(0, tokens), expected(plain, tokens, (1, 2)), rtol=2e-5, atol=2e-5)
    assert num_recorded(graphs) == 1


def planned(model: LanguageModel, features: Features | None) -> list[torch.Tensor]:
    """Return logits, keys and values of two rows of two tokens each, by a forward that is planned beforehand."""
    model.allocate(2, 20)
    model.prefill([0, 1], random_prompts((6, 6)))
    positions_BT = torch.tensor([[6, 7], [6, 7]])
    plan = model.cache.plan(None, positions_BT, 8, None)
    logits_MV = model.run_planned(TOKENS_BT[:2, :2].flatten(), torch.arange(4), plan, features)
    return [logits_MV, *(stored_SPHD[:, :8] for layer in model.cache.layers for stored_SPHD in layer.stored())]


def test_a_planned_forward_leaves_its_features_to_its_caller(plain):
    model = on_kernels(plain)
    before, features = planned(model, None), Features(FeatureTap(IDS, lambda stream_NX: stream_NX, lambda *_: 1 / 0))
    assert_equal(planned(model, features), before)
    found_NX = features.take()
    for row, (prompt, tokens) in enumerate(zip(random_prompts((6, 6)), TOKENS_BT[:2, :2].tolist(), strict=True)):
        right_TX = expected(plain, [*prompt, *tokens], IDS)[6:]
        torch.testing.assert_close(found_NX[2 * row : 2 * row + 2], right_TX, rtol=2e-5, atol=2e-5)


def test_a_planned_forward_does_not_forget_a_tap_and_rounds_with_one_do_not_overlap(plain):
    model = on_kernels(plain)
    model.close_call = 0.0
    assert can_be_recorded(model, NoDrafter(), COUPLED)
    model.hand_out(Kept(IDS).tap)
    assert not can_be_recorded(model, NoDrafter(), COUPLED)
    with pytest.raises(AssertionError, match="a drafter would miss the features"):
        planned(model, None)
