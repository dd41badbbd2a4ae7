"""What a folder holds is known from its files: other things than models, and weights that are not whole, are named."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from decoding.checkpoint.model_files import num_bytes_read
from decoding.checkpoint.supported import load_config, model_folder, read_config
from decoding.network.language_model import LanguageModel
from tests.decoding.tiny import build, llama_config, save

INDEX = "model.safetensors.index.json"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a model that runs, until a test changes it."""
    save(build(llama_config(), seed=1), tmp_path / "model")
    return tmp_path / "model"


def refused(folder: Path) -> str:
    """Return the one line by which the plan and the load refuse a folder."""
    with pytest.raises(ValueError, match=str(folder)) as planned:
        load_config(str(folder))
    with pytest.raises(ValueError, match=str(folder)) as loaded:
        LanguageModel.load(str(folder), "cpu")
    assert str(planned.value) == str(loaded.value)
    assert "\n" not in str(loaded.value)
    assert "trust_remote_code" not in str(loaded.value)
    return str(loaded.value)


def _say(folder: Path, **fields: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def test_a_git_lfs_pointer_is_not_called_broken_weights(model):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1234\n"
    (model / "model.safetensors").write_text(pointer)
    assert "is a Git LFS pointer, not weights; run git lfs pull" in refused(model)


LINKED = [
    "config.json", "generation_config.json", "adapter_config.json", "model.safetensors",
    "model-00002-of-00002.safetensors", INDEX, "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "merges.txt", "chat_template.jinja",
    "chat_templates/default.jinja", "additional_chat_templates/tool_use.jinja",
]  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
def test_a_file_that_is_a_link_to_nothing_is_named_whether_or_not_a_model_needs_it(model, name):
    file = model / name
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    blob = model.parent / "blobs" / "0a1b"  # as in a cache, from which this one was deleted
    file.symlink_to(blob)
    for load in (model_folder, lambda folder: LanguageModel.load(folder, "cpu")):
        with pytest.raises(ValueError, match="download the model again") as caught:
            load(str(model))
        assert str(caught.value).startswith(f"'{file}' is a link to nothing: '{blob}' is not there")


def test_links_to_files_are_files_locks_of_editors_are_none_and_a_link_to_no_folder_is_no_hub_name(model):
    (model.parent / "blobs").mkdir()
    (model / "config.json").rename(model.parent / "blobs" / "0a1b")
    (model / "config.json").symlink_to("../blobs/0a1b")
    (model / ".#config.json").symlink_to("me@host.1234")
    assert model_folder(str(model)) == str(model)
    assert load_config(str(model)).model_type == "llama"
    (model.parent / "moved").symlink_to(model.parent / "gone")
    with pytest.raises(ValueError, match="moved' is a link to nothing"):
        model_folder(str(model.parent / "moved"))


def test_a_tilde_is_the_home_of_the_user(model, monkeypatch):
    monkeypatch.setenv("HOME", str(model.parent))
    assert model_folder(f"~/{model.name}") == str(model)


HEADERS = {
    "empty": b"",
    "a web page": b"<html>404 not found</html>",
    "no JSON": struct.pack("<Q", 4) + b"xxxx",
    "longer than the file": struct.pack("<Q", 2**60) + b"{}",
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_a_file_that_is_not_safetensors_is_named(model, content):
    (model / "model.safetensors").write_bytes(content)
    assert "model.safetensors' is cut off or damaged: safetensors says" in refused(model)


@pytest.mark.parametrize("num_lost", [1, 100, 70_000])
def test_weights_that_end_before_their_last_tensor_are_refused_before_they_are_read(model, num_lost):
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-num_lost])
    assert f"of its {weights.stat().st_size} bytes; copy or download it again" in refused(model)


def test_every_file_that_the_index_names_must_be_there_and_whole(model):
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    second = model / "model-00002-of-00002.safetensors"
    shards = {"lm_head.weight": "model-00001-of-00002.safetensors", "more": second.name}
    (model / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    assert f"lacks 1 of the 2 files that {INDEX} names, first '{second.name}'" in refused(model)
    second.write_bytes(b"")
    assert f"{second.name}' is cut off or damaged" in refused(model)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 5}'])
def test_a_broken_index_is_named(model, content):
    (model / "model.safetensors").unlink()
    (model / "other.safetensors").write_bytes(b"")
    (model / INDEX).write_text(content)
    assert INDEX in refused(model)


def test_weights_under_a_name_that_nothing_loads_are_named(model):
    (model / "model.safetensors").rename(model / "consolidated.safetensors")
    assert f"has no model.safetensors or {INDEX}, only consolidated.safetensors" in refused(model)


def test_other_files_of_weights_beside_the_models_own_do_not_matter(model):
    (model / "consolidated.safetensors").write_bytes(b"not loaded by anyone")
    assert load_config(str(model)).model_type == "llama"


def test_an_adapter_beside_a_model_is_refused_by_name_with_what_to_do(model):
    (model / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-8B"}')
    assert "holds a PEFT adapter beside a model, and it cannot be known which of the two is meant" in refused(model)


DRAFT_HEADS = {
    "eagle3": {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "model_type": None},
    "LlamaForCausalLMEagle3": {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 24},
    "EagleLlamaForCausalLM": {"architectures": ["EagleLlamaForCausalLM"]},
    "it has draft_vocab_size": {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 24},
    "it has medusa_num_heads": {"model_type": None, "medusa_num_heads": 4},
}


@pytest.mark.parametrize("name", DRAFT_HEADS)
def test_a_draft_head_is_refused_by_name_with_what_to_do(model, name):
    _say(model, **DRAFT_HEADS[name])
    assert f"is a draft head ({name}), which reads the hidden states of its target, and a complete" in refused(model)


QUANTIZED = {
    "gptq": {"quant_method": "gptq", "bits": 3, "group_size": 128},
    "awq": {"quant_method": "awq", "bits": 4, "zero_point": True},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "int-quantized"},
    "bitsandbytes": {"load_in_4bit": True},
    "fp8": {"quant_method": "fp8", "activation_scheme": "static"},
    "mxfp4": {"quant_method": "mxfp4"},
    "fbgemm_fp8": {"quant_method": "fbgemm_fp8"},
}


@pytest.mark.parametrize("method", QUANTIZED)
@pytest.mark.parametrize("part", [None, "text_config"])
def test_a_quantized_checkpoint_is_refused_by_name_before_any_weight_is_read(model, method, part):
    said = {"quantization_config": QUANTIZED[method]}
    _say(model, **(said if part is None else {part: said}))
    assert f"is quantized ({method}), and Dray runs unquantized checkpoints, packed ones" in refused(model)


def test_code_of_its_own_beside_a_model_type_that_transformers_has_is_not_needed(model):
    _say(model, auto_map={"AutoModelForCausalLM": "mine.Model"})
    assert LanguageModel.load(str(model), "cpu").vocab_size == 48


def test_a_model_type_that_is_unknown_is_told_in_one_line(model):
    _say(model, model_type="mine")
    assert "model type `mine`" in refused(model)


@pytest.mark.parametrize(
    ("field", "value"), [("hidden_size", "wide"), ("hidden_act", "no_such"), ("num_attention_heads", 5)]
)
def test_a_value_from_which_no_network_can_be_built_is_told_in_one_line(model, field, value):
    _say(model, **{field: value})
    with pytest.raises(ValueError, match=rf"model at '{model}'.*{value}") as caught:
        LanguageModel.load(str(model), "cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}, 6),
        ({"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}, 6),
        ({"model_type": "deepseek_v3", "n_routed_experts": 8, "num_experts_per_tok": 1}, 5),
        ({"model_type": "qwen3"}, 12),
    ],
)
def test_a_token_reads_the_experts_that_work_on_it_and_all_else(fields, expected, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    kib = torch.zeros(256, 1024)  # and its head of some bytes
    tensors = {f"model.layers.0.mlp.experts.{number}.up_proj.weight": kib.clone() for number in range(8)}
    tensors |= {f"model.layers.0.mlp.{name}.weight": kib.clone() for name in ("shared_experts.up_proj", "gate")}
    tensors |= {"lm_head.weight": kib.clone(), "model.embed_tokens.weight": kib.clone()}
    save_file(tensors, tmp_path / "model.safetensors")
    assert num_bytes_read(tmp_path, read_config(str(tmp_path))) / 2**20 == pytest.approx(expected, rel=0.01)
