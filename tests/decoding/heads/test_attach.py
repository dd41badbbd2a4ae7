"""A head is measured beside its target: which layers it reads, and whether it was trained for this target at all."""

import logging
import re
from dataclasses import replace

import pytest
import torch

from decoding import Engine, EngineOptions, SamplingParams
from decoding.heads.attach import attach
from decoding.heads.format.folder import Head, save_head
from decoding.heads.format.tensors import membership, offsets
from decoding.network.language_model import LanguageModel
from decoding.network.target import SlotsLostError
from tests.decoding.heads.tiny_heads import perfect_blocks, perfect_pair, save_perfect_pair, some_target_ids
from tests.decoding.tapped import Kept
from tests.decoding.tiny import build, llama_config, random_prompts, save

PAIRS = {"eagle3": perfect_pair, "dflash": perfect_blocks}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[str, str]:
    """A target, and a head that is always right about it."""
    return save_perfect_pair(tmp_path_factory.mktemp("perfect"))


@pytest.fixture(scope="module", params=PAIRS)
def pair(request, tmp_path_factory) -> tuple[str, str, str]:
    """A target, a head of each kind that is always right about it, and the drafter for that kind."""
    return *save_perfect_pair(tmp_path_factory.mktemp("pair"), PAIRS[request.param]), request.param


def test_a_perfect_head_is_accepted_always(pair):
    target, head, _ = pair
    options = EngineOptions(num_slots=3, num_speculative_tokens=4, draft_length="fixed")
    engine = Engine.load(target, head, options, device="cpu")
    plain = Engine.load(target, device="cpu")
    for temperature in (0.0, 0.8):
        params = SamplingParams(max_tokens=20, temperature=temperature)
        found, expected = (each.generate(random_prompts([5, 2, 9, 3]), params) for each in (engine, plain))
        assert [row.output_token_ids for row in found] == [row.output_token_ids for row in expected]
        assert sum(row.num_accepted_tokens for row in found) == sum(row.num_draft_tokens for row in found) > 40


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", PAIRS)
def test_a_perfect_head_of_some_tokens_is_accepted_always_where_the_others_are_banned(tmp_path, kind, temperature):
    """The noise is that of the target's ids: keyed by the head's own, it would agree at temperature 0 alone."""
    network, head = PAIRS[kind]()
    target = save(network, tmp_path / "target")
    config = replace(head.config, draft_vocab_size=20)
    ids_D = some_target_ids(config)
    over_ids = {name for name in head.tensors if name in ("lm_head.weight", "markov_head.markov_w2.weight")}
    weights = {name: each[ids_D] if name in over_ids else each for name, each in head.tensors.items()}
    weights["d2t"] = offsets(ids_D)
    weights["t2d"] = membership(ids_D, config.vocab_size)
    save_head(Head(config, weights), str(tmp_path / "head"), "speculators")
    options = EngineOptions(num_slots=3, num_speculative_tokens=4, draft_length="fixed")
    engine = Engine.load(target, str(tmp_path / "head"), options, device="cpu")
    banned = dict.fromkeys(set(range(config.vocab_size)) - set(ids_D.tolist()), -100.0)
    params = SamplingParams(max_tokens=20, temperature=temperature, logit_bias=banned)
    found = engine.generate(random_prompts([5, 2, 9, 3]), params)
    assert sum(row.num_accepted_tokens for row in found) == sum(row.num_draft_tokens for row in found) > 40


@pytest.mark.parametrize("said", ["inputs", "outputs"])
@pytest.mark.parametrize("kind", PAIRS)
def test_the_layers_that_agree_are_read_whatever_the_folder_calls_them(tmp_path, caplog, kind, said):
    """This head reads what enters layer 1; as "outputs" the same ids would mean layer 2."""
    target, head = PAIRS[kind](reads_features=True)
    path = save(target, tmp_path / "target")
    config = replace(head.config, layer_ids_are=said)
    save_head(Head(config, head.tensors), str(tmp_path / "head"), "speculators" if said == "inputs" else "eagle")
    model = LanguageModel.load(path, "cpu")
    with caplog.at_level(logging.INFO):
        own = attach(str(tmp_path / "head"), model, path)
    assert own.layer_ids == (1,)
    assert "100% of the tokens if it reads what enters layers [1]" in caplog.text


def test_a_target_that_loses_its_slots_over_the_measurement_is_measured_once_more(folders, monkeypatch):
    model, lost = LanguageModel.load(folders[0], "cpu"), []
    logprobs = model.logprobs

    def loses_its_slots_at_first(*args):
        lost.append(len(lost) == 3)
        if lost[-1]:
            raise SlotsLostError("a stage was lost")
        return logprobs(*args)

    monkeypatch.setattr(model, "logprobs", loses_its_slots_at_first)
    assert attach(folders[1], model, folders[0]).layer_ids == (0, 1, 2)
    assert lost == [False] * 3 + [True] + [False] * 8


def test_an_earlier_drafter_gets_nothing_of_the_measurement(folders):
    model, kept = LanguageModel.load(folders[0], "cpu"), Kept((0,))
    model.hand_out(kept.tap)
    attach(folders[1], model, folders[0])
    assert kept.calls == []
    assert model.tap is None


def refusal(target: str, head: str) -> str:
    with pytest.raises(ValueError, match="head") as failure:
        Engine.load(target, head, device="cpu")
    message = str(failure.value)
    assert "\n" not in message
    return message


def test_a_head_for_another_target_is_refused_by_what_it_agrees_on(folders, tmp_path):
    other = save(build(llama_config(), seed=3), tmp_path / "other")
    message = refusal(other, folders[1])
    assert "expected at least 15%" in message
    assert "it was trained for another target, or for other layers" in message


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (llama_config(hidden_size=64), "was trained for a target with a hidden size of 32, but"),
        (llama_config(64), "was trained for a target with a vocabulary of 48, but"),
        (llama_config(num_hidden_layers=1), "reads layer 2"),
    ],
)
def test_a_head_that_cannot_fit_its_target_is_refused_by_name(folders, tmp_path, config, says):
    other = save(build(config, seed=3), tmp_path / "other")
    message = refusal(other, folders[1])
    assert message.startswith(f"{folders[1]!r} ")
    assert says in message


def test_a_head_without_an_embedding_uses_its_targets(folders, tmp_path):
    _, head = perfect_pair()
    tensors = {name: tensor for name, tensor in head.tensors.items() if name != "embed_tokens.weight"}
    save_head(Head(head.config, tensors), str(tmp_path / "head"), "speculators")
    model = LanguageModel.load(folders[0], "cpu")
    own = attach(str(tmp_path / "head"), model, folders[0])
    assert torch.equal(own.network.embed_tokens.weight, model.network.get_input_embeddings().weight)


def test_a_model_is_no_head_and_a_head_is_no_model(folders, tmp_path):
    target, head = folders
    with pytest.raises(ValueError, match="is not a draft head but a model of its own"):
        Engine.load(target, target, EngineOptions(drafter="eagle3"), device="cpu")
    with pytest.raises(ValueError, match=r"is a draft head \(eagle3\), .*a complete model is wanted here"):
        Engine.load(target, head, EngineOptions(drafter="model"), device="cpu")
    with pytest.raises(ValueError, match="which has no such window"):
        Engine.load(target, head, EngineOptions(draft_window=16), device="cpu")


def test_a_head_of_one_kind_is_refused_with_the_drafter_of_another(pair):
    """The models are not loaded: there is none."""
    _, head, drafter = pair
    other = {"eagle3": "dflash", "dflash": "eagle3"}[drafter]
    kind = {"eagle3": "eagle3", "dflash": "dspark"}[drafter]
    says = f"engine.drafter is {other!r}, but {head!r} is a head of kind {kind!r}, with which {drafter!r} drafts"
    with pytest.raises(ValueError, match=re.escape(says)):
        Engine.load("no/target", head, EngineOptions(drafter=other), device="cpu")
    assert EngineOptions().pick_drafter(head) == drafter
