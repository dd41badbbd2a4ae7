"""An assistant drafts what transformers' own class drafts from the committed text, and the text stays the target's."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from decoding import Engine, EngineOptions, SamplingParams
from decoding.checkpoint.loading import footprint_of
from decoding.drafters.assistant import AssistantDrafter
from decoding.drafters.base import NoDrafter
from decoding.drafters.making import make_drafter
from decoding.heads import attach
from decoding.heads.assistant_folder import fitting_assistant
from decoding.heads.assistant_head import AssistantHead, Sight
from decoding.heads.format.folder import is_assistant, is_head, read_head
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from tests.decoding.drafters.over_heads import PROMPTS, Watched, engine_over
from tests.decoding.heads.tiny_assistants import (
    KINDS,
    assistant_of,
    change,
    drafts_of,
    knowing_pair,
    save_pair,
    target_of,
)
from tests.decoding.tiny import outputs, random_prompts, schedule_at_random

GREEDY = SamplingParams(max_tokens=16, temperature=0)
SAMPLED = SamplingParams(max_tokens=16, temperature=5)  # the noise decides, so a draft with other noise is wrong


class WatchedAssistant(Watched, AssistantDrafter):
    """A drafter that notes what it drafts for which text."""


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory) -> SimpleNamespace:
    """A target, an assistant with random weights beside it, and both as transformers has them."""
    kind, root = request.param, tmp_path_factory.mktemp(request.param)
    target, folder = save_pair(kind, root)
    model = LanguageModel.load(target, "cpu")
    check_model(model, target)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attach, "LEAST_AGREEMENT", 0.0)
        head = attach.attach_assistant(folder, model, target)
    found = SimpleNamespace(model=model, head=head, folder=folder, target=target_of(kind), assistant=assistant_of(kind))
    found.texts = plain(found, PROMPTS, GREEDY)
    return found


def watched(pair: SimpleNamespace, num_slots: int) -> WatchedAssistant:
    drafter = WatchedAssistant(pair.head, pair.model, num_slots, 80)
    drafter.seen = []
    return drafter


def plain(pair: SimpleNamespace, prompts, params) -> list[list[int]]:
    return outputs(engine_over(pair.model.share(), NoDrafter(), num_slots=1).generate(prompts, params))


def share_wrong(pair: SimpleNamespace, drafter: WatchedAssistant) -> float:
    """The share of drafts, of some 40 among all, that are not what transformers drafts for the same text."""
    assert len(drafter.seen) > 20
    some = drafter.seen[:: 1 + len(drafter.seen) // 40]
    wrong = [drafts_of(pair.assistant, pair.target, tokens, limit) != drafted for tokens, drafted, limit in some]
    return sum(wrong) / len(wrong)


@pytest.mark.parametrize(("num_slots", "num_drafted"), [(1, 1), (3, 5)])
def test_each_draft_is_what_transformers_drafts_for_the_committed_text(pair, num_slots, num_drafted):
    drafter = watched(pair, num_slots)
    engine = engine_over(pair.model, drafter, num_slots=num_slots, num_drafted=num_drafted, max_prefill_tokens=5)
    sequences = engine.generate(PROMPTS, GREEDY)
    assert outputs(sequences) == pair.texts
    assert any(sequence.num_cached_tokens for sequence in sequences)  # a prefix was copied
    assert max(len(tokens) for tokens, _, _ in drafter.seen) > 30  # windows of 6 were crossed
    assert share_wrong(pair, drafter) == 0


@pytest.mark.parametrize("pair", ["small", "large"], indirect=True)
@pytest.mark.parametrize("num_slots", [2, 12])
def test_texts_and_drafts_are_exact_whichever_rows_draft_and_rest(pair, monkeypatch, num_slots):
    """Rows of all lengths change slots, draft or not, and the drafter rests, in which it still gets its states."""
    prompts, drafter = random_prompts([9, 1, 5, 17, 2, 11, 3, 8, 21, 4, 6, 13, 7]), watched(pair, num_slots)
    expected = plain(pair, prompts, SAMPLED)
    engine = engine_over(pair.model, drafter, num_slots=num_slots, num_drafted=4)
    with monkeypatch.context() as patched:
        schedule_at_random(patched, seed=num_slots)
        for params in (GREEDY, SAMPLED):
            drafter.seen.clear()
            sequences = engine.generate(prompts, params)
            if params is GREEDY:
                assert share_wrong(pair, drafter) == 0
    assert outputs(sequences) == expected
    assert sum(sequence.num_accepted_tokens for sequence in sequences) > 0  # it drew with the rows' own noise


def test_the_tokens_of_other_centroids_are_never_drafted(pair):
    with torch.inference_mode():
        logits_NV = pair.head._logits(torch.randn(5, 16))
    assert logits_NV.isfinite().sum(-1).tolist() == [18 if pair.assistant.config.use_ordered_embeddings else 48] * 5


def test_the_plan_knows_the_memory_of_target_and_assistant(pair):
    engine_over(pair.model, watched(pair, 3)).generate(PROMPTS, GREEDY)
    assert footprint_of(pair.model.network.config, "float32", 3, 80).cache == pair.model.cache.num_bytes
    planned = fitting_assistant(pair.folder, pair.model.network.config, "x")
    own = sum(each.numel() for each in pair.assistant.state_dict().values()) - pair.assistant.lm_head.weight.numel()
    assert planned.num_weights == own


def _shifted(cache, slots, nums_seen, device, *, by: int) -> Sight:
    """A sight whose queries stand `by` positions further on."""
    sight = Sight(cache, slots, nums_seen, device)
    sight.at_N = sight.at_N + by
    return sight


def _swap_halves(head: AssistantHead, patched: pytest.MonkeyPatch) -> None:
    projection = head.network.pre_projection
    own = projection.forward
    patched.setattr(projection, "forward", lambda x_NX: own(x_NX.roll(32, -1)))


def _other_layers(head: AssistantHead, patched: pytest.MonkeyPatch) -> None:
    """Read keys of other layers, of the same kind, sizes and slots."""
    own = Sight.attend
    swapped = {2: 0, 3: 1} if head.feature_layers == (6,) else {2: 1}
    patched.setattr(
        Sight, "attend", lambda self, query, layer_id, window: own(self, query, swapped.get(layer_id, layer_id), window)
    )


def _no_norm(head: AssistantHead, patched: pytest.MonkeyPatch, which: str) -> None:
    norm, left_out = head._norm, {id(getattr(layer, which)) for layer in head.network.model.layers}
    patched.setattr(head, "_norm", lambda module, x: x if id(module) in left_out else norm(module, x))


PLANTS = {
    "the wrong layers' keys": _other_layers,
    "positions one on": lambda _, patched: patched.setattr(
        "decoding.drafters.assistant.Sight", partial(_shifted, by=1)
    ),
    "positions one back": lambda _, patched: patched.setattr(
        "decoding.drafters.assistant.Sight", partial(_shifted, by=-1)
    ),
    "swapped halves": _swap_halves,
    "no norm before a layer": partial(_no_norm, which="input_layernorm"),
    "no norm behind attention": partial(_no_norm, which="post_attention_layernorm"),
    "a state before the target's norm": lambda head, patched: patched.setattr(head, "_target_norm", lambda x: x),
}


@pytest.mark.parametrize("pair", ["small", "large"], indirect=True)
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_changes_drafts_and_no_text(pair, monkeypatch, plant):
    drafter = watched(pair, 3)
    with monkeypatch.context() as patched:
        PLANTS[plant](pair.head, patched)
        assert outputs(engine_over(pair.model, drafter).generate(PROMPTS, GREEDY)) == pair.texts
    assert share_wrong(pair, drafter) > 0.25


@pytest.mark.parametrize("options", [{}, {"drafter": "hybrid"}, {"draft_length": "fixed", "num_lanes": 2}])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_pair_in_folders_drafts_by_the_real_load_path(tmp_path, options, temperature):
    """This assistant knows what its target says without its layers, which is right most of the time."""
    target, folder = knowing_pair(tmp_path)
    settings = EngineOptions(**{"num_slots": 3, "num_speculative_tokens": 4, "max_model_len": 80, **options})
    engine, alone = Engine.load(target, folder, settings, device="cpu"), Engine.load(target, device="cpu")
    params = SamplingParams(max_tokens=20, temperature=temperature)
    found, expected = (each.generate(random_prompts([5, 2, 9, 3]), params) for each in (engine, alone))
    assert outputs(found) == outputs(expected)
    if "draft_length" in options:
        assert [lane.drafter._target for lane in engine.lanes] == [lane.target for lane in engine.lanes]
        assert sum(each.num_accepted_tokens for each in found) > 0.5 * sum(each.num_draft_tokens for each in found)


def test_an_assistant_that_agrees_too_seldom_is_refused(tmp_path):
    target, folder = save_pair("large", tmp_path)
    with pytest.raises(ValueError, match=r"agrees with .* of the tokens, expected at least 15%"):
        Engine.load(target, folder, device="cpu")


REFUSED = {
    "a hidden size of 40": {"backbone_hidden_size": 40},
    "a vocabulary of 96": {"text_config": {"vocab_size": 96}},
    "has num_key_value_heads 4 in layers of kind 'sliding_attention'": {"text_config": {"num_key_value_heads": 4}},
    "has head_dim 8 in layers of kind 'sliding_attention'": {"text_config": {"head_dim": 8}},
    "has 3 heads": {"text_config": {"num_attention_heads": 3}},
    "says chain_norm True in config.json, which is not read here": {"chain_norm": True},
    "says attention_sinks 4 in config.json": {"text_config": {"attention_sinks": 4}},
    "says final_logit_softcapping 30.0": {"text_config": {"final_logit_softcapping": 30.0}},
    "says quantization_config": {"quantization_config": {"quant_method": "fp8"}},
    "has 7 centroids, which do not divide its 48 tokens": {"use_ordered_embeddings": True, "num_centroids": 7},
    "has layers with keys of their own": {"text_config": {"num_kv_shared_layers": 1}},
}


@pytest.mark.parametrize("said", REFUSED)
def test_an_assistant_that_does_not_fit_is_refused_by_name_before_a_weight_is_read(tmp_path, said):
    target, folder = save_pair("unified", tmp_path)
    (tmp_path / "assistant" / "model.safetensors").unlink()
    model = LanguageModel.load(target, "cpu")
    fitting_assistant(folder, model.network.config, target)
    change(folder, REFUSED[said])
    with pytest.raises(ValueError, match=said) as refused:
        fitting_assistant(folder, model.network.config, target)
    assert str(refused.value).startswith(repr(folder))


def test_an_assistant_of_another_family_or_another_kind_of_layers_is_refused(tmp_path, folders):
    target, folder = save_pair("unified", tmp_path)
    llama = LanguageModel.load(folders.target, "cpu").network.config
    with pytest.raises(ValueError, match="is an assistant of Gemma 4, and 'x' is of type llama"):
        fitting_assistant(folder, llama, "x")
    own = LanguageModel.load(target, "cpu").network.config
    own.layer_types = ["full_attention"] * 4
    with pytest.raises(ValueError, match="has a layer of kind 'sliding_attention', and 'x' has none"):
        fitting_assistant(folder, own, "x")


def test_an_assistant_is_a_head_for_its_own_drafter_and_no_model(tmp_path):
    target, folder = save_pair("small", tmp_path)
    assert is_head(folder)
    assert is_assistant(folder)
    assert not is_assistant(target)
    assert EngineOptions().pick_drafter(folder) == "assistant"
    with pytest.raises(ValueError, match="is a head of kind 'assistant', with which 'assistant' drafts"):
        EngineOptions(drafter="eagle3").pick_drafter(folder)
    with pytest.raises(ValueError, match="is an assistant of Gemma 4, which drafts beside its target as it is"):
        read_head(folder)
    with pytest.raises(ValueError, match=r"is a draft head \(gemma4_assistant\)"):
        LanguageModel.load(folder, "cpu")
    with pytest.raises(AssertionError, match="a target in this process"):
        make_drafter("assistant", object.__new__(AssistantHead), 48, 2, 80)
