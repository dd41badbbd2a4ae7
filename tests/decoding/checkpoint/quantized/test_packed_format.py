"""What config.json says of packed weights is read word by word, or refused by name before any weight is read."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoding.checkpoint.adapter import base_of
from decoding.checkpoint.loading import load_network
from decoding.checkpoint.model_files import is_packed
from decoding.checkpoint.quantized.packed_format import packed_layout
from decoding.checkpoint.rank import check_can_be_sharded
from decoding.checkpoint.supported import load_config
from decoding.codes.packed_tensors import PackedLayout
from tests.decoding.checkpoint.test_model_files import refused
from tests.decoding.codes.packed_folders import KINDS, save_packed
from tests.decoding.fp8.checkpoints import say
from tests.decoding.tiny import build, llama_config

PUBLISHED: dict[str, tuple[dict[str, object], PackedLayout]] = {
    # Qwen2.5-7B-Instruct-GPTQ-Int4, by AutoGPTQ
    "AutoGPTQ": (
        {
            "batch_size": 1, "bits": 4, "block_name_to_quantize": None, "cache_block_outputs": True,
            "damp_percent": 0.01, "dataset": None, "desc_act": False, "exllama_config": {"version": 1},
            "group_size": 128, "max_input_length": None, "model_seqlen": None,
            "module_name_preceding_first_block": None, "modules_in_block_to_quantize": None, "pad_token_id": None,
            "quant_method": "gptq", "sym": True, "tokenizer": None, "true_sequential": True, "use_cuda_fp16": False,
            "use_exllama": True,
        },
        PackedLayout("gptq", 4, 128, is_symmetric=True, added=1),
    ),
    "GPTQModel": (
        {
            "bits": 4, "checkpoint_format": "gptq_v2", "desc_act": True, "dynamic": {"-:.*gate.*": {}},
            "format": "gptq_v2", "group_size": 32, "lm_head": False, "meta": {"quantizer": ["gptqmodel:7.7.0"]},
            "method": "gptq", "pack_dtype": "int32", "quant_method": "gptq", "sym": False,
        },
        PackedLayout("gptq", 4, 32, is_symmetric=False, is_ordered=True),
    ),
    # Qwen2.5-7B-Instruct-AWQ, by AutoAWQ
    "AutoAWQ": (
        {
            "bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm",
            "zero_point": True,
        },
        PackedLayout("awq", 4, 128, is_symmetric=False),
    ),
    # `QuantizeConfig.to_dict`
    "AWQ of GPTQModel": (
        {
            "bits": 4, "checkpoint_format": "gemm", "desc_act": True, "dynamic": {"-:.*gate.*": {}}, "format": "gemm",
            "group_size": 128, "lm_head": False, "meta": {"quantizer": ["gptqmodel:5.0.0"]}, "method": "awq",
            "pack_dtype": "int32", "quant_method": "awq", "version": "gemm", "zero_point": True,
        },
        PackedLayout("awq", 4, 128, is_symmetric=False),
    ),
    "llm-compressor": (KINDS["W8A16"].config, PackedLayout("pack-quantized", 8, 32, is_symmetric=True)),
    "llm-compressor by channels": (
        KINDS["W4A16 by channels"].config, PackedLayout("pack-quantized", 4, None, is_symmetric=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("writer", PUBLISHED)
def test_the_words_of_each_writer_are_read(writer):
    said, layout = PUBLISHED[writer]
    assert packed_layout({"quantization_config": said}) == layout


def _with(name: str, path: str, value: object) -> dict[str, object]:
    """Return what a kind of checkpoint says with another value at this place."""
    said = copy.deepcopy(KINDS[name].config)
    inner: dict = said
    *outer, last = path.split("/")
    for part in outer:
        inner = inner[part]
    inner[last] = value
    return said


def _in_group(path: str, value: object) -> dict[str, object]:
    return _with("W4A16", f"config_groups/group_0/{path}", value)


GROUP_OF_8 = KINDS["W8A16"].config["config_groups"]["group_0"]  # type: ignore[index]
REFUSED: dict[str, dict[str, object]] = {
    "bits is 3": _with("GPTQ", "bits", 3),
    "it does not say bits": _with("GPTQ", "bits", None),
    "it does not say group_size": _with("GPTQ", "group_size", None),
    "group_size is 20": _with("GPTQ", "group_size", 20),
    "group_size is -2": _with("AWQ", "group_size", -2),
    "checkpoint_format is 'marlin'": _with("GPTQ", "checkpoint_format", "marlin"),
    "is_marlin_format is True": _with("GPTQ", "is_marlin_format", True),
    "pack_dtype is 'int16'": _with("GPTQ", "pack_dtype", "int16"),
    "dynamic has '+:down', whose layers are packed otherwise": _with("GPTQ", "dynamic", {"+:down": {"bits": 8}}),
    "dynamic is ['a']": _with("GPTQ", "dynamic", ["a"]),
    "rotation is 'hadamard', which Dray does not know": _with("GPTQ", "rotation", "hadamard"),
    "dynamic has '+:up', whose layers are packed otherwise": _with("AWQ", "dynamic", {"+:up": {"group_size": 32}}),
    "bits is 8": _with("AWQ", "bits", 8),
    "checkpoint_format is 'gemv'": _with("AWQ", "checkpoint_format", "gemv"),
    "version is 'gemv'": _with("AWQ", "version", "gemv"),
    "backend is 'llm-awq'": _with("AWQ", "backend", "llm-awq"),
    "config_groups.group_0.weights.num_bits is 6": _in_group("weights/num_bits", 6),
    "config_groups.group_0.weights.type is 'float'": _in_group("weights/type", "float"),
    "config_groups.group_0.weights.strategy is 'tensor'": _in_group("weights/strategy", "tensor"),
    "config_groups.group_0.weights.group_size is None": _in_group("weights/group_size", None),
    "config_groups.group_0.weights does not say strategy": _in_group("weights/strategy", None),
    "config_groups.group_0.weights.actorder is 'novel'": _in_group("weights/actorder", "novel"),
    "config_groups.group_0.input_activations is {'num_bits': 8}": _in_group("input_activations", {"num_bits": 8}),
    "its layers are of several kinds (2)": _with("W4A16", "config_groups/group_1", GROUP_OF_8),
    "kv_cache_scheme is {'num_bits': 8}": _with("W4A16", "kv_cache_scheme", {"num_bits": 8}),
    "sparsity_config.format is 'sparse-24-bitmask'": _with("W4A16", "sparsity_config", {"format": "sparse-24-bitmask"}),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model with packed weights that runs, until a test changes it."""
    return Path(save_packed(build(llama_config(hidden_size=64, intermediate_size=64), 1), tmp_path, KINDS["W4A16"]))


@pytest.mark.parametrize("why", REFUSED)
def test_other_words_are_refused_by_name_before_any_weight_is_read(folder, why):
    said = REFUSED[why]
    say(folder, quantization_config=said)
    message = refused(folder)
    assert f"is quantized ({said['quant_method']}), and Dray runs" in message
    assert f"or for rows: {why}; use the original one" in message


def test_a_mixture_of_experts_with_packed_weights_is_refused_by_name(folder):
    say(folder, num_local_experts=8)
    assert "it is a mixture of experts (num_local_experts is 8)" in refused(folder)


def test_files_that_say_something_else_than_config_json_are_refused_by_name(folder):
    say(folder, quantization_config=KINDS["GPTQ"].config)
    assert "is packed (gptq) by its config.json, and has no packed weights" in refused(folder)
    say(folder, quantization_config=KINDS["W4A16 with zero points"].config)
    assert "has nothing of shape [] as 'model.layers.0.mlp.down_proj.weight_zero_point'" in refused(folder)


def test_a_folder_that_is_refused_elsewhere_and_a_head_are_not_called_packed(folder):
    assert is_packed(str(folder))
    say(folder, draft_vocab_size=24)
    assert not is_packed(str(folder))
    say(folder, draft_vocab_size=None, quantization_config={"load_in_4bit": True})
    assert not is_packed(str(folder))
    assert not is_packed(str(folder / "nothing"))


def test_the_configuration_is_that_of_the_dequantized_model(folder):
    assert not hasattr(load_config(str(folder)), "quantization_config")


def test_a_packed_weight_that_is_too_small_for_its_layer_is_refused_when_it_is_loaded(folder):
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.down_proj"
    for part in (f"{name}.weight_packed", f"{name}.weight_scale"):
        tensors[part] = tensors[part][:32].contiguous()
    save_file(tensors | {f"{name}.weight_shape": torch.tensor([32, 64])}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="cannot load the model"):
        load_network(str(folder), "cpu", "float32")


def test_ranks_and_adapters_of_packed_weights_are_refused_by_name(folder, tmp_path):
    with pytest.raises(ValueError, match="has FP8 or packed weights, whose layers are not shared out"):
        check_can_be_sharded(load_config(str(folder)), str(folder), 2)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    said = {"peft_type": "LORA", "base_model_name_or_path": str(folder)}
    (adapter / "adapter_config.json").write_text(json.dumps(said))
    (adapter / "adapter_model.safetensors").touch()
    with pytest.raises(ValueError, match="has FP8 or packed weights, into which nothing can be merged"):
        base_of(adapter, str)
