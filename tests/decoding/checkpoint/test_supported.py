"""What cannot run is refused by name, kindly, and before any weight is read."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from decoding.checkpoint.supported import max_positions
from decoding.network.language_model import LanguageModel
from decoding.network.stage import Stage
from tests.decoding.families import family_config
from tests.decoding.tiny import build, llama_config, save

SMALL = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}

REFUSED = {
    "encoder-decoder": ("T5Config", {"vocab_size": 32, "d_model": 16, "num_layers": 1}, "t5"),
    "recurrent state": ("RwkvConfig", {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1}, "rwkv"),
    "outside of the cache": ("RecurrentGemmaConfig", {**SMALL, **HEADS}, "recurrent_gemma"),
    "indexed_attention": ("DeepseekV32Config", {**SMALL, "num_attention_heads": 4}, "deepseek_v32"),
    "not a causal language model": ("ViTConfig", {"hidden_size": 16, "num_hidden_layers": 1}, "vit"),
}


def _folder_without_weights(tmp_path: Path, config: transformers.PretrainedConfig) -> str:
    """The weights are not weights: reading them would raise something else."""
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    return str(tmp_path)


@pytest.mark.parametrize("reason", REFUSED)
def test_a_model_that_cannot_roll_back_is_refused_by_name_before_its_weights_are_read(tmp_path, reason):
    class_name, settings, name = REFUSED[reason]
    path = _folder_without_weights(tmp_path, getattr(transformers, class_name)(**settings))
    with pytest.raises(ValueError, match=reason) as caught:
        LanguageModel.load(path, "cpu")
    assert name in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_layers_with_states_are_refused_where_transformers_lacks_the_calls_for_them(tmp_path, monkeypatch):
    monkeypatch.delattr(transformers.Cache, "get_conv_state")
    path = _folder_without_weights(tmp_path, family_config("convolutions"))
    with pytest.raises(ValueError, match=rf"from 5\.21 on, and this is transformers {transformers.__version__}"):
        LanguageModel.load(path, "cpu")


@pytest.mark.parametrize("path", ["/no/such/folder", "./nothing", "~/nothing", "no-such-model", "a/b/c"])
def test_a_missing_folder_is_named(path):
    with pytest.raises(ValueError, match=r"no model at|no folder") as caught:
        LanguageModel.load(path, "cpu")
    assert repr(path) in str(caught.value)


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]", '"x"', "{}", '{"model_type": "no_such_type"}', '{"model_type": 5}']
)
def test_no_configuration_and_an_unreadable_one_are_value_errors(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match=str(tmp_path)):
        LanguageModel.load(str(tmp_path), "cpu")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.gguf", ""])
def test_a_folder_without_weights_is_named_and_weights_that_can_run_code_are_refused(tmp_path, name):
    llama_config().save_pretrained(tmp_path)
    if name:
        torch.save({}, tmp_path / name)
    with pytest.raises(ValueError, match=rf"no safetensors weights.*{name}"):
        LanguageModel.load(str(tmp_path), "cpu")


@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.1.mlp.up_proj.weight"])
def test_weights_that_lack_a_tensor_are_refused_and_not_filled_with_random_numbers(tmp_path, name):
    path = save(build(llama_config(), seed=1), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"lack 1 tensors of the model, first '{name}'"):
        LanguageModel.load(path, "cpu")


def _qwen2_called_llama(tmp_path: Path) -> str:
    path = save(build(transformers.Qwen2Config(**SMALL, **HEADS), seed=1), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    return path


def test_weights_that_the_model_or_a_stage_has_no_place_for_are_refused_and_not_dropped(tmp_path):
    path = _qwen2_called_llama(tmp_path)
    with pytest.raises(ValueError, match=r"6 tensors for which LlamaForCausalLM has no place.*k_proj\.bias.*'llama'"):
        LanguageModel.load(path, "cpu")
    for index in range(2):
        with pytest.raises(ValueError, match=rf"3 tensors for which .* has no place, first 'model.layers.{index}\."):
            Stage.load(path, index, 2, "cpu")


def test_weights_that_the_model_class_says_are_needless_are_left_out(tmp_path):
    path = save(build(transformers.GPTNeoXConfig(**SMALL, num_attention_heads=4), seed=1), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["gpt_neox.layers.0.attention.bias"] = torch.ones(1)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert LanguageModel.load(path, "cpu").vocab_size == 32


def test_a_models_own_code_is_never_run(tmp_path):
    save(build(llama_config(), seed=1), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'it_ran')!r}, 'w')\n")
    with pytest.raises(ValueError, match="code of its own") as caught:
        LanguageModel.load(str(tmp_path), "cpu")
    assert str(tmp_path) in str(caught.value)
    assert "trust_remote_code" not in str(caught.value)
    assert not (tmp_path / "it_ran").exists()


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


def _with_rope(**parameters: object) -> LlamaConfig:
    return llama_config(rope_parameters={"rope_theta": 1e4, **parameters}, max_position_embeddings=96)


def test_the_context_is_what_the_configuration_says():
    assert max_positions(llama_config()) == 96
    assert max_positions(transformers.GPT2Config(n_positions=77)) == 77
    assert max_positions(transformers.BloomConfig()) is None
    assert transformers.XLNetConfig().max_position_embeddings == -1
    assert max_positions(transformers.XLNetConfig()) is None


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"rope_type": "default"}, 96),
        ({"rope_type": "linear", "factor": 2.0}, 96),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}, 96),
        ({"rope_type": "dynamic", "factor": 2.0}, 96),
        ({"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 48}, 48),
        ({**LONGROPE, "factor": 4.0, "original_max_position_embeddings": 24}, 24),
    ],
)
def test_rope_that_depends_on_the_longest_row_caps_the_context(parameters, expected):
    assert max_positions(_with_rope(**parameters)) == expected
