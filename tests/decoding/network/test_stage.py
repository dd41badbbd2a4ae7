"""Each stage has its own layers' weights only, and slots of its own; what they compute: test_stage_features.py."""

import pytest
import torch
import transformers

from decoding.checkpoint.layer_subset import CannotCutError, LayerRange, cut
from decoding.network.language_model import LanguageModel
from decoding.network.stage import Stage
from tests.decoding.families import FAMILIES, FUSED, NUM_LAYERS, saved
from tests.decoding.tapped import EVERY_BT, LENGTHS, PROMPTS, SLOTS, STARTS, TOKENS_BT
from tests.decoding.tiny import build, save


def load_chain(path: str, num_stages: int, **kwargs: object) -> list[Stage]:
    return [Stage.load(path, index, num_stages, "cpu", **kwargs) for index in range(num_stages)]


def through(stages: list[Stage], fed: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    for stage in stages:
        fed = stage.forward(fed, *args, **kwargs)
    return fed


def packed(tokens_BT: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    return torch.cat([row[:length] for row, length in zip(tokens_BT, lengths, strict=True)])


def chain_logits(stages: list[Stage]) -> torch.Tensor:
    for stage in stages:
        stage.allocate(4, 60)
    prompts = torch.tensor([token for prompt in PROMPTS for token in prompt])
    through(stages, prompts, [0, 0, 0], [len(prompt) for prompt in PROMPTS], slots=SLOTS)
    return through(stages, packed(TOKENS_BT, LENGTHS), STARTS, LENGTHS, EVERY_BT, slots=SLOTS)


def plain(stages: list[Stage], tokens: list[int], method: str) -> torch.Tensor:
    fed = torch.tensor(tokens)
    for stage in stages:
        fed = getattr(stage, method)(fed)
    return fed[0]


def test_sessions_of_a_stage_have_slots_of_their_own(tmp_path):
    stages = load_chain(saved("llama", tmp_path, FUSED), 2)
    for stage in stages:
        stage.speed_up()
    alone = chain_logits(stages)
    for stage in stages:
        stage.allocate(4, 60, session=1)
    junk = torch.randint(48, (60,), generator=torch.Generator().manual_seed(5))
    through(stages, junk, [0], [60], slots=[2], session=1)
    again = through(stages, packed(TOKENS_BT, LENGTHS), STARTS, LENGTHS, EVERY_BT, slots=SLOTS)
    assert torch.equal(again, alone)


@pytest.mark.parametrize("tied", [False, True])
def test_a_stage_has_the_weights_of_its_own_layers_and_no_others(tied, tmp_path):
    path = saved("llama", tmp_path, tie_word_embeddings=tied)
    whole, stages = LanguageModel.load(path, "cpu"), load_chain(path, 3)
    names = {name for name, _ in whole.network.named_parameters()}
    found = [{name for name, _ in stage.network.named_parameters()} for stage in stages]
    assert set().union(*found) == names
    for stage, own in zip(stages, found, strict=True):
        layers = {int(name.split(".")[2]) for name in own if name.startswith("model.layers.")}
        assert layers == set(range(stage.layers.first, stage.layers.end))
    assert ["model.embed_tokens.weight" in own for own in found] == [True, False, tied]
    assert [any("lm_head" in name for name in own) for own in found] == [False, False, not tied]
    table, norm = 48 * 32 * 4, 32 * 4  # bytes; the final norm is on every stage, a tied table on the first and the last
    assert sum(stage.num_weight_bytes for stage in stages) == whole.num_weight_bytes + 2 * norm + tied * table


def test_weights_of_other_stages_are_never_read(tmp_path, monkeypatch):
    path = saved("llama", tmp_path)
    read: list[str] = []
    from transformers import core_model_loading

    spawn = core_model_loading.spawn_materialize

    def recorded(pool, tensor, *args, **kwargs):
        read.append(str(tensor[...].shape))
        return spawn(pool, tensor, *args, **kwargs)

    monkeypatch.setattr(core_model_loading, "spawn_materialize", recorded)
    Stage.load(path, 1, 5, "cpu")
    assert len(read) == 9 + 1, "one layer's tensors and the final norm"


def test_layers_that_share_keys_and_values_are_not_cut(tmp_path):
    shared = {"num_kv_shared_layers": 2, "vocab_size_per_layer_input": 48, "altup_num_inputs": 2}
    depth = {"num_hidden_layers": NUM_LAYERS, "layer_types": ["full_attention"] * NUM_LAYERS}
    config = transformers.Gemma3nTextConfig(**{**FAMILIES["llama"][1], **shared, **depth, "head_dim": 8})
    path = save(build(config, seed=3), tmp_path)
    with pytest.raises(CannotCutError, match=r"share more than hidden states .*; run it whole"):
        Stage.load(path, 0, 2, "cpu")


@pytest.mark.parametrize("handed", ["in the open", "among others, in a list"])
def test_a_layer_with_an_unknown_argument_is_refused(handed, tmp_path, monkeypatch):
    path = saved("llama", tmp_path)
    kind = transformers.models.llama.modeling_llama.LlamaDecoderLayer
    forward = kind.forward

    def with_more(self, hidden_states, *args, first_hidden_states=None, **kwargs):
        return forward(self, hidden_states, *args, **kwargs)

    is_open = handed == "in the open"
    if is_open:
        monkeypatch.setattr(kind, "forward", with_more)
    call = kind.__call__

    def call_with_more(self, hidden, *args, **kwargs):
        return call(self, hidden, *args, first_hidden_states=hidden if is_open else [hidden], **kwargs)

    monkeypatch.setattr(kind, "__call__", call_with_more)
    stage = Stage.load(path, 0, 2, "cpu")
    with pytest.raises(CannotCutError, match="first_hidden_states"):
        stage.plain(torch.tensor([1, 2, 3]))


def test_layers_are_shared_out_as_equally_as_can_be_and_more_stages_than_layers_are_refused(tmp_path):
    assert cut(7, 3) == [LayerRange(0, 2, 7), LayerRange(2, 5, 7), LayerRange(5, 7, 7)]
    assert [(r.first, r.end) for r in cut(8, 3)] == [(0, 3), (3, 6), (6, 8)]
    assert cut(4, 1) == [LayerRange.whole(4)]
    path = saved("llama", tmp_path)
    with pytest.raises(ValueError, match="a model of 5 layers cannot be cut into 6 stages"):
        Stage.load(path, 0, 6, "cpu")
