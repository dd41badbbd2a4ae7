"""A target hands out its residual stream before any layers, of each token that it writes, and computes the same."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from decoding import SamplingParams, Sequence
from decoding.cache.features import Features
from decoding.checkpoint.layer_subset import CannotCutError
from decoding.network import slot_network
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from decoding.sampling.judging import ScoreRequest
from decoding.sampling.logprobs import Stretch
from decoding.sampling.verdicts import Draft
from tests.decoding.families import FAMILIES, family_network
from tests.decoding.tapped import LENGTHS, PROMPTS, SLOTS, STARTS, TOKENS_BT, Kept, check_tap, expected, written
from tests.decoding.tiny import rows_over

IDS = (2, 0, 1)  # of two layers; in another order than that of the layers


def num_hooks(network: PreTrainedModel) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in network.modules())


def plain_model(name: str = "llama") -> tuple[LanguageModel, PreTrainedModel]:
    """A model that transformers' own code runs, and the network alone."""
    network = family_network(name)
    return LanguageModel(copy.deepcopy(network), frozenset()), network


@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_the_hidden_states_of_transformers_and_change_no_bit(family):
    model, network = plain_model(family)
    last = network.config.num_hidden_layers
    check_tap(model, network, (last, 0, 1))


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_forward_hands_out_its_rows_end_to_end_and_no_padding(is_packed):
    model, _ = plain_model()
    model.packs_rows = is_packed
    kept = Kept(IDS)
    model.hand_out(kept.tap)
    written(model)
    ragged = [call for call in kept.calls if call[0] == SLOTS and call[1] == STARTS]
    own = [token for row, length in zip(TOKENS_BT.tolist(), LENGTHS, strict=True) for token in row[:length]]
    assert ragged == [(SLOTS, STARTS, LENGTHS, own)]
    assert (8 in kept.num_projected) == is_packed
    assert max(kept.num_projected) >= 15, "a rectangle of three rows of five tokens"


def test_rows_that_run_apart_are_handed_out_together():
    model, network = plain_model("llama_yarn")
    model.runs_rows_apart, model.packs_rows = True, False
    kept = check_tap(model, network, IDS)
    assert (SLOTS, STARTS, LENGTHS) in [call[:3] for call in kept.calls]


def test_everything_that_writes_into_slots_hands_out_and_nothing_else_does():
    model, network = plain_model()
    kept = Kept(IDS)
    model.hand_out(kept.tap)
    check_model(model, "llama")  # which takes it off
    assert kept.calls == kept.num_projected == []
    model.hand_out(kept.tap)
    model.allocate(2, 60)
    prompt = PROMPTS[0]
    rows = rows_over([Sequence.create(prompt, SamplingParams())], [3])
    model.plain_logits(prompt)
    model.decide(rows, [], None)
    model.seconds(2, 3)
    assert kept.calls == []
    assert kept.num_projected == [6], "the time of a forward is that with features"
    model.allocate(2, 60)
    model.logprobs([Stretch.over(0, 0, prompt[:4], prompt[1:5], 1)])
    assert kept.calls == [([0], [0], [4], prompt[:4])]
    model.decide(rows, [], None, in_slot=1)
    assert [call[:3] for call in kept.calls[1:]] == [([1], [0], [19]), ([1], [19], [1])]
    model.prefill([0], [prompt[:-1]])
    drafted = torch.tensor([[5, 6, 7]])
    draft = Draft(drafted, torch.tensor([3]), max_draft_tokens_B=(2,))
    model.score(ScoreRequest(rows, draft, (None,))).result()
    assert kept.calls[-1] == ([0], [19], [3], [prompt[-1], 5, 6]), "what was fed"
    tokens = [*prompt, 5, 6]
    torch.testing.assert_close(kept.of(0, tokens), expected(network, tokens, IDS), rtol=1e-5, atol=1e-5)


def test_no_hook_is_left_behind_by_a_forward_or_by_one_that_fails(monkeypatch):
    model, _ = plain_model()
    before = num_hooks(model.network)
    seen = []
    real = Features.keep
    monkeypatch.setattr(Features, "keep", lambda *args: seen.append(num_hooks(model.network)) or real(*args))
    model.hand_out(Kept(IDS).tap)
    written(model)
    assert set(seen) == {before + 3}
    assert num_hooks(model.network) == before
    monkeypatch.setattr(Features, "keep", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        written(model)
    assert num_hooks(model.network) == before


@pytest.mark.parametrize("layer_ids", [(), (0, 3), (-1,), (1, 1)])
def test_layers_that_a_target_does_not_have_are_refused(layer_ids):
    model, _ = plain_model()
    with pytest.raises(ValueError, match="a target of 2 layers can be read at different places from 0 to 2"):
        model.hand_out(replace(Kept(IDS).tap, layer_ids=layer_ids))
    assert model.tap is None


def test_a_network_whose_layers_cannot_be_told_is_refused(monkeypatch):
    def fails(*_: object) -> None:
        raise CannotCutError("two lists")

    monkeypatch.setattr(slot_network, "layer_list", fails)
    with pytest.raises(ValueError, match=r"LlamaForCausalLM has no single list of 2 layers.* reads tokens alone"):
        plain_model()[0].hand_out(Kept(IDS).tap)


def _off_by_one(monkeypatch) -> None:
    keep = Features.keep
    monkeypatch.setattr(Features, "keep", lambda self, k, hidden: keep(self, 1 - k if k < 2 else k, hidden))


def _padding(monkeypatch) -> None:
    take = Features.take
    monkeypatch.setattr(Features, "take", lambda self: take(self).roll(1, 0))


@pytest.mark.parametrize("plant", [_off_by_one, _padding])
def test_the_check_would_see_a_wrong_layer_and_lines_of_other_tokens(plant, monkeypatch):
    model, network = plain_model()
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_tap(model, network, IDS)
