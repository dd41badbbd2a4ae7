"""Modules that keep states are found by the text of their model files, in all methods of their classes."""

import importlib.util
import re

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from decoding.checkpoint.loading import footprint_of
from decoding.checkpoint.supported import check_config
from decoding.network.probe import check_model
from decoding.states.layers import state_modules
from decoding.states.model_file import keeps_states_outside_modules
from tests.decoding.families import STATES, family_config, family_network
from tests.decoding.tiny import loaded

# A convolution over several residual streams in a method beside `forward`, with the newest token ids in a module of its
# own, and a gated delta rule beside it.
STREAMS = {
    **STATES["gated delta"][1],
    "layer_types": ["linear_attention"] * 4,
    "hc_count": 2,
    "hc_lowrank": 8,
    "ple_layer_ids": [2],
    "ple_embed_dim": 32,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 50,
    "make_ngram_vocab_size_divisible_by": 8,
    "split_ngram_parts": 1,
    "eos_token_id": 3,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
}
TABLE = {"streams": ("Qwen4ExpTextConfig", STREAMS)}


@pytest.mark.skipif(not hasattr(transformers, "Qwen4ExpTextConfig"), reason="this transformers has no such model")
def test_a_module_that_keeps_states_in_a_method_beside_its_forward_is_exact_and_its_memory_known(tmp_path):
    network = family_network("streams", TABLE)
    kinds = [type(module).__name__ for module in state_modules(network)]
    assert kinds.count("Qwen4ExpTextGatedDeltaNet") == 4
    assert kinds.count("Qwen4ExpTextPLELayer") == 1
    assert len(kinds) == 5, "a part of a module that keeps states is not found by itself"
    model = loaded(network, tmp_path)
    assert check_model(model, "streams") < 1e-5
    model.allocate(3, 40, 4)
    model.prefill([0], [[1, 2, 3]])
    foretold = footprint_of(family_config("streams", TABLE), "float32", 3, 40, 4)
    assert model.cache.num_bytes == pytest.approx(foretold.cache, rel=0.05)


SOURCE = """
from transformers import PretrainedConfig, PreTrainedModel

class OddConfig(PretrainedConfig):
    model_type = "odd"

def keep(cache, state):
    cache.update_recurrent_state(state, 0)

class OddModel(PreTrainedModel):
    config_class = OddConfig

    def forward(self, hidden_states, past_key_values=None):
        keep(past_key_values, hidden_states)
"""


def test_states_that_are_kept_outside_of_modules_are_refused_by_name_before_weights_are_read(tmp_path, monkeypatch):
    (tmp_path / "modeling_odd.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("modeling_odd", tmp_path / "modeling_odd.py")
    odd = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "modeling_odd", odd)
    spec.loader.exec_module(odd)
    monkeypatch.setitem(MODEL_FOR_CAUSAL_LM_MAPPING._extra_content, odd.OddConfig, odd.OddModel)
    with pytest.raises(ValueError, match=re.escape("'a/folder' (odd) keeps states in functions of its model file")):
        check_config(odd.OddConfig(), "a/folder")


@pytest.mark.parametrize("name", STATES)
def test_the_modules_of_a_known_family_keep_all_of_its_states(name):
    with torch.device("meta"):
        network = family_network(name, STATES)
    assert not keeps_states_outside_modules(type(network))
