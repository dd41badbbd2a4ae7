"""Made pairs agree as often as asked, by greedy text."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.pair_factory import SHAPES, Shape, cached_pair, describe_pair, greedy_acceptance, make_pair
from decoding import Engine, EngineOptions, SamplingParams
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


def test_an_assistant_is_accepted_as_often_as_asked(tmp_path):
    draft = Shape(32, 2, 4, 2, 64, 512, head_size=16, family="gemma4")
    shape = Shape(64, 4, 4, 2, 96, 512, head_size=16, family="gemma4", draft=draft)
    assert make_pair(tmp_path, shape, 0.7, torch.float32) == pytest.approx(0.7, abs=0.1)
    options = EngineOptions(num_slots=4, draft_length="fixed", num_speculative_tokens=1)
    engine = Engine.load(str(tmp_path / "target"), str(tmp_path / "draft"), options, device="cpu")
    prompts = torch.randint(512, (12, 20), generator=torch.Generator().manual_seed(9)).tolist()
    rows = engine.generate(prompts, SamplingParams(max_tokens=60, temperature=0))
    rate = sum(row.num_accepted_tokens for row in rows) / sum(row.num_draft_tokens for row in rows)
    assert rate == pytest.approx(0.7, abs=0.15)


def test_a_pair_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setitem(SHAPES, "tiny", SHAPE)
    folder = cached_pair(tmp_path, "tiny", 0.8, "float32")
    assert describe_pair(folder)["acceptance"] == pytest.approx(0.8, abs=0.05)
    made = (folder / "target" / "model.safetensors").stat().st_mtime_ns
    assert cached_pair(tmp_path, "tiny", 0.8, "float32") == folder
    assert (folder / "target" / "model.safetensors").stat().st_mtime_ns == made
    assert cached_pair(tmp_path, "tiny", 0.5, "float32") != folder
