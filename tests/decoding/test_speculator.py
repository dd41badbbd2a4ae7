"""A head as an object: read, attached, used, taken off and written again."""

import pytest
import torch

from decoding import Engine, EngineOptions, SamplingParams, Speculator
from decoding.heads.folder import read_head
from decoding.network.language_model import LanguageModel
from tests.decoding.heads.tiny_heads import perfect_blocks, perfect_pair, save_perfect_pair
from tests.decoding.tiny import random_prompts


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[str, str]:
    """A target, and a head that is always right about it."""
    return save_perfect_pair(tmp_path_factory.mktemp("perfect"))


@pytest.fixture(scope="module", params=[perfect_pair, perfect_blocks])
def pair(request, tmp_path_factory) -> tuple[str, str]:
    """A target, and a head of each kind that is always right about it."""
    return save_perfect_pair(tmp_path_factory.mktemp("pair"), request.param)


def test_generate_writes_the_targets_own_text_by_accepted_drafts(pair):
    target, head = pair
    prompts, params = random_prompts([4, 1, 7]), SamplingParams(max_tokens=12, temperature=0.7)
    speculator = Speculator.from_pretrained(head)
    speculator.attach(target, device="cpu")
    expected = Engine.load(target, device="cpu").generate(prompts, params, seed=4)
    for _ in range(2):
        found = speculator.generate(prompts, params, EngineOptions(draft_length="fixed"), seed=4)
        assert [row.output_token_ids for row in found] == [row.output_token_ids for row in expected]
    assert sum(row.num_accepted_tokens for row in found) == sum(row.num_draft_tokens for row in found) > 20


def test_a_target_is_as_it_was_after_its_head_is_taken_off(folders):
    target, head = folders
    model = LanguageModel.load(target, "cpu")
    before = model.plain_logits([1, 2, 3])
    speculator = Speculator.from_pretrained(head)
    assert speculator.attach(model) is model
    speculator.generate([[1, 2, 3]], SamplingParams(max_tokens=5))
    speculator.detach()
    assert speculator.target is None
    assert model.tap is None
    assert torch.equal(model.plain_logits([1, 2, 3]), before)
    speculator.attach(model)


def test_a_head_without_a_target_says_what_to_do(folders):
    speculator = Speculator.from_pretrained(folders[1])
    assert speculator.config.kind == "eagle3"
    with pytest.raises(RuntimeError, match="has no target yet; attach one first"):
        speculator.generate([[1]], SamplingParams())
    speculator.attach(folders[0], device="cpu")
    with pytest.raises(RuntimeError, match="is attached already; detach it first"):
        speculator.attach(folders[0], device="cpu")


@pytest.mark.parametrize("form", ["speculators"])
def test_a_head_that_is_written_again_has_the_same_tensors(folders, tmp_path, form):
    Speculator.from_pretrained(folders[1], folders[0]).save_pretrained(str(tmp_path / "again"), form)
    again, first = read_head(str(tmp_path / "again")).tensors, read_head(folders[1]).tensors
    assert again.keys() == first.keys()
    assert all(torch.equal(again[name], first[name]) for name in first)
