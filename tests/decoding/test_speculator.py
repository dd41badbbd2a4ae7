"""A head as an object: read, attached, used, taken off and written again."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import core_model_loading

from decoding import Engine, EngineOptions, SamplingParams, Speculator
from decoding.heads.format.folder import read_head, save_head
from decoding.heads.target_parts import TargetParts
from decoding.network.language_model import LanguageModel
from tests.decoding.families import FAMILIES, NUM_LAYERS, saved
from tests.decoding.fp8.checkpoints import saved_fp8
from tests.decoding.heads.tiny_heads import perfect_blocks, perfect_pair, save_perfect_pair
from tests.decoding.tapped import expected
from tests.decoding.tiny import build, llama_config, random_prompts, save


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


def lacking(folders: tuple[str, str], folder, *names: str) -> str:
    """The head without some of its tensors."""
    head = read_head(folders[1])
    tensors = {name: tensor for name, tensor in head.tensors.items() if name not in names}
    save_head(replace(head, tensors=tensors), str(folder), "speculators")
    return str(folder)


def shapes_read(monkeypatch) -> list[tuple[int, ...]]:
    """The shapes of the tensors that are read from files from now on."""
    read: list[tuple[int, ...]] = []
    spawn = core_model_loading.spawn_materialize

    def recorded(pool, tensor, *args, **kwargs):
        read.append(tuple(tensor[...].shape))
        return spawn(pool, tensor, *args, **kwargs)

    monkeypatch.setattr(core_model_loading, "spawn_materialize", recorded)
    return read


def test_parts_of_a_target_for_training_are_its_own_tensors_and_no_layer_is_read(folders, tmp_path, monkeypatch):
    target, _ = folders
    head = lacking(folders, tmp_path / "head", "embed_tokens.weight", "lm_head.weight")
    whole = LanguageModel.load(target, "cpu").network
    read = shapes_read(monkeypatch)
    speculator = Speculator.from_pretrained(head)
    found = speculator.attach(target, parts="head", device="cpu")
    vocab_size, size = whole.get_input_embeddings().weight.shape
    assert sorted(read) == [(size,), (vocab_size, size), (vocab_size, size)]
    assert torch.equal(found.target.embed_tokens.weight, whole.get_input_embeddings().weight)
    assert torch.equal(found.target.norm.weight, whole.model.norm.weight)
    assert torch.equal(found.target.lm_head.weight, whole.get_output_embeddings().weight)
    assert found.network.embed_tokens.weight is found.target.embed_tokens.weight
    assert found.network.lm_head.weight is found.target.lm_head.weight
    wanting = {name for name, weight in found.network.named_parameters() if weight.requires_grad}
    assert wanting == {name for name, _ in found.network.named_parameters()} - {"embed_tokens.weight", "lm_head.weight"}
    assert found.config.layer_ids == speculator.config.layer_ids
    own = read_head(head).tensors
    assert all(torch.equal(found.network.get_parameter(name), own[name]) for name in wanting)
    speculator.detach()
    assert speculator.trainable is None


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parts_of_a_target_turn_what_leaves_its_last_layer_into_its_logits(family, tmp_path):
    path = saved(family, tmp_path)
    network = LanguageModel.load(path, "cpu").network
    if family == "gemma2":
        with pytest.raises(ValueError, match=r"changes its logits .*final_logit_softcapping is 8.0.*the whole target"):
            TargetParts.load(path, "cpu")
        return
    hidden_NE = expected(network, [3, 1, 4, 1], [NUM_LAYERS])
    logits_NV = network(input_ids=torch.tensor([[3, 1, 4, 1]])).logits[0]
    assert torch.equal(TargetParts.load(path, "cpu").logits(hidden_NE), logits_NV)


def test_tied_embeddings_are_one_tensor_and_come_without_an_output_layer_in_the_files(tmp_path):
    path = saved("llama", tmp_path, tie_word_embeddings=True)
    parts = TargetParts.load(path, "cpu")
    whole = LanguageModel.load(path, "cpu").network
    assert parts.lm_head.weight is parts.embed_tokens.weight
    assert torch.equal(parts.lm_head.weight, whole.get_output_embeddings().weight)


def test_the_parts_of_a_target_with_fp8_layers_are_those_of_the_whole(tmp_path):
    path = saved_fp8("llama", tmp_path, "blocks")
    parts, whole = TargetParts.load(path, "cpu"), LanguageModel.load(path, "cpu").network
    for found, right in (
        (parts.embed_tokens, whole.get_input_embeddings()),
        (parts.norm, whole.model.norm),
        (parts.lm_head, whole.get_output_embeddings()),
    ):
        assert torch.equal(found.weight, right.weight)


def test_a_head_with_parts_of_its_target_writes_no_text_and_a_loaded_model_has_no_files(folders):
    target, head = folders
    speculator = Speculator.from_pretrained(head, target, parts="head")
    with pytest.raises(RuntimeError, match=r"only the head's parts of the target .* are here.*attach the whole target"):
        speculator.generate([[1]], SamplingParams())
    with pytest.raises(RuntimeError, match="is attached already; detach it first"):
        speculator.attach(target)
    with pytest.raises(ValueError, match="got a model that is loaded; name its folder"):
        Speculator.from_pretrained(head).attach(LanguageModel.load(target, "cpu"), parts="head")


def test_a_target_of_other_names_or_another_size_is_refused_in_one_line(folders, tmp_path):
    other = save(build(llama_config(hidden_size=64), seed=3), tmp_path / "other")
    with pytest.raises(ValueError, match="was trained for a target with a hidden size of 32") as failure:
        Speculator.from_pretrained(folders[1]).attach(other, parts="head")
    assert "\n" not in str(failure.value)
    weights = load_file(tmp_path / "other/model.safetensors")
    save_file({f"strange.{name}": each for name, each in weights.items()}, tmp_path / "other/model.safetensors")
    with pytest.raises(ValueError, match="lack 3 tensors of the model") as failure:
        TargetParts.load(other, "cpu")
    assert "\n" not in str(failure.value)
