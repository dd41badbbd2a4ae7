"""Made pairs agree as often as asked, by greedy text."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.pair_factory import SHAPES, Shape, _nested, cached_pair, describe_pair, greedy_acceptance, make_pair
from decoding.network.language_model import LanguageModel
from tests.benchmarks.conftest import SHAPE


def nested(family: str) -> Shape:
    """The nested shape, of another family."""
    shape = SHAPES["nested-tiny"]
    return replace(shape, family=family, draft=replace(shape.draft, family=family))


@pytest.mark.parametrize("rate", [0.5, *(pytest.param(rate, marks=pytest.mark.slow) for rate in (0.2, 0.95))])
def test_the_first_layers_agree_as_often_as_asked(tmp_path, rate):
    found = make_pair(tmp_path, SHAPE, rate, torch.float32)
    assert found == pytest.approx(rate, abs=0.05)
    other_prompts_BT = torch.randint(SHAPE.vocab, (16, 20), generator=torch.Generator().manual_seed(9))
    target, draft = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("target", "draft"))
    assert greedy_acceptance(target, draft, other_prompts_BT) == pytest.approx(rate, abs=0.1)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_draft_with_a_shape_of_its_own_agrees_too(tmp_path, family):
    shape = nested(family)
    found = make_pair(tmp_path, shape, 0.7, torch.float32, seed=2)
    assert found == pytest.approx(0.7, abs=0.1)
    draft = AutoModelForCausalLM.from_pretrained(tmp_path / "draft")
    assert (draft.config.model_type, draft.config.hidden_size) == (family, shape.draft.hidden)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_without_noise_a_nested_target_is_its_draft(family):
    shape = nested(family)
    target, draft, scale = _nested(shape, shape.draft, torch.float32, seed=0)
    scale(0.0)
    tokens_BT = torch.randint(512, (2, 20), generator=torch.Generator().manual_seed(9))
    torch.testing.assert_close(target(tokens_BT).logits, draft(tokens_BT).logits, rtol=1e-3, atol=1e-3)


def test_the_8b_pair_normalizes_queries_and_keys_and_is_fused():
    for shape in (SHAPES["8b"], SHAPES["8b"].draft):
        network = replace(shape, hidden=64, layers=1, feed_forward=96, vocab=128).network()
        assert any("q_norm" in name for name, _ in network.named_parameters())
        model = LanguageModel(network, frozenset())
        model.speed_up()
        assert model.fused is not None


def test_a_pair_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setitem(SHAPES, "tiny", SHAPE)
    folder = cached_pair(tmp_path, "tiny", 0.8, "float32")
    assert describe_pair(folder)["acceptance"] == pytest.approx(0.8, abs=0.05)
    made = (folder / "target" / "model.safetensors").stat().st_mtime_ns
    assert cached_pair(tmp_path, "tiny", 0.8, "float32") == folder
    assert (folder / "target" / "model.safetensors").stat().st_mtime_ns == made
    assert cached_pair(tmp_path, "tiny", 0.5, "float32") != folder


def test_a_pair_of_another_family_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setitem(SHAPES, "tiny", SHAPE)
    folder = cached_pair(tmp_path, "tiny", 0.8, "float32")
    monkeypatch.setitem(SHAPES, "tiny", replace(SHAPE, family="qwen3"))
    assert cached_pair(tmp_path, "tiny", 0.8, "float32") == folder
    assert json.loads((folder / "target/config.json").read_text())["model_type"] == "qwen3"


@pytest.mark.parametrize("rate", [0.0, 1.0, 1.5])
def test_an_impossible_rate_is_refused(tmp_path, rate):
    with pytest.raises(ValueError, match=f"between 0 and 1, got {rate}"):
        make_pair(tmp_path, SHAPE, rate, torch.float32)
