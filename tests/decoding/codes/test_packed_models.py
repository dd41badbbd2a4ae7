"""Packed checkpoints run on their own codes: the text of transformers over the dequantized weights in float32."""

import json
import logging
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PretrainedConfig, Qwen2Config

from actors.engines.footprint import footprint, made_of_in_words
from actors.settings import GeneratorSettings, ModelSettings
from decoding import Engine, EngineOptions, SamplingParams
from decoding.checkpoint.loading import load_network
from decoding.checkpoint.supported import load_config
from decoding.codes import packed_tensors
from decoding.codes.packed_tensors import PackedTensor
from decoding.engine.draft_folder import check_replacement
from decoding.fused import kernels
from decoding.network.language_model import LanguageModel
from decoding.network.stage import Stage
from tests.decoding.codes.packed_folders import KINDS, NOT_IN_CODES, save_packed
from tests.decoding.codes.test_coded_models import PER_LAYER, SIZES, loaded, logits
from tests.decoding.tiny import build, random_prompts, save

VOCAB_SIZE = 64


@pytest.fixture(autouse=True)
def kernel() -> None:
    if kernels.load_linear(torch.float32) is None:
        pytest.skip("no compiler here, or no AVX2")


def saved(
    folder: Path, name: str, config: type[PretrainedConfig] = LlamaConfig, seed: int = 3, **fields: object
) -> tuple[str, str]:
    """The folder of a packed model, and that of the same model with its dequantized weights."""
    network = build(config(vocab_size=VOCAB_SIZE, **SIZES | fields), seed)
    packed = save_packed(network, folder / f"packed-{seed}", KINDS[name], eos_token_id=0)
    return packed, save(network, folder / f"plain-{seed}", eos_token_id=0)


@pytest.mark.parametrize(
    ("name", "config", "more"),
    [
        ("GPTQ", LlamaConfig, {"tie_word_embeddings": True}),
        ("GPTQ with zero points", Qwen2Config, {}),
        ("AWQ", Qwen2Config, {}),
        ("W4A16", LlamaConfig, {}),
        ("W4A16 with zero points", LlamaConfig, {}),
        ("W8A16", LlamaConfig, {}),
        ("GPTQ in act order", LlamaConfig, {}),
        ("W8A16 of float32 with zero points", LlamaConfig, {}),
    ],
)
def test_the_greedy_text_is_that_of_transformers_over_the_dequantized_weights(tmp_path, name, config, more):
    packed, plain = saved(tmp_path, name, config, **more)
    reference = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    prompts = random_prompts([4, 9, 6, 12, 7])
    engine = Engine.load(packed, None, EngineOptions(num_slots=4, max_model_len=64, drafter="suffix"), device="cpu")
    num_layers = 0 if name in NOT_IN_CODES else 3 * PER_LAYER
    assert engine.target.facts() == {"fused": True, "graphs": False, "coded_layers": num_layers}
    rows = list(engine.generate(prompts, SamplingParams(temperature=0, max_tokens=32)))
    for row, prompt in zip(rows, prompts, strict=True):
        written = reference.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=32)[0, len(prompt) :]
        assert row.output_token_ids == written.tolist()
    assert len({token for row in rows for token in row.output_token_ids}) > 5


@pytest.mark.parametrize("name", [name for name in KINDS if name not in NOT_IN_CODES])
def test_logits_are_those_of_the_dequantized_weights_bit_for_bit_and_no_float32_copy_is_left(tmp_path, name):
    sizes = {"hidden_size": 96, "intermediate_size": 192}
    packed, plain = (loaded(path) for path in saved(tmp_path, name, **sizes))
    assert (packed.num_coded_layers, plain.num_coded_layers) == (3 * PER_LAYER, 0)
    for num_rows in (1, 9, 40):
        assert torch.equal(logits(packed, num_rows), logits(plain, num_rows))
    assert packed.num_weight_bytes < 0.6 * plain.num_weight_bytes


@pytest.mark.parametrize("name", ["GPTQ", "AWQ", "W4A16", "W8A16 with zero points", "W8A16 of float32", *NOT_IN_CODES])
def test_the_plan_has_the_memory_of_codes_and_says_what_runs(tmp_path, name):
    folder, _ = saved(tmp_path, name)
    settings = GeneratorSettings(models=ModelSettings(target=folder, device="cpu", dtype="float32"))
    planned, model = footprint(settings, folder).weights, loaded(folder)
    assert 0.95 * model.num_weight_bytes < planned <= model.num_weight_bytes
    weights = f"{KINDS[name].num_bits} bits ({KINDS[name].method})"
    words = f"dequantized from {weights} to float32" if name in NOT_IN_CODES else f"weights of {weights} as they are"
    assert made_of_in_words(settings, folder) == f", {words}"
    by_vllm = replace(settings, engine=replace(settings.engine, backend="vllm"))
    assert made_of_in_words(by_vllm, folder) == "", "vLLM reads packed weights in its own way"


def test_in_bfloat16_each_dequantized_weight_is_rounded_once(tmp_path):
    packed, plain = saved(tmp_path, "GPTQ with zero points")
    expected = {name: each.to(torch.bfloat16) for name, each in load_file(Path(plain) / "model.safetensors").items()}
    network, end_ids = load_network(packed, "cpu", "bfloat16")
    assert network.name_or_path == packed
    assert end_ids == {0}
    found = network.state_dict()
    assert all(torch.equal(found[name], each) for name, each in expected.items())


def test_the_parts_of_a_weight_may_lie_in_several_files(tmp_path):
    packed, plain = saved(tmp_path, "GPTQ with zero points")
    folder = Path(packed)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards = {name: f"model-{1 + name.endswith(('zeros', 'norm.weight'))}.safetensors" for name in tensors}
    for shard in set(shards.values()):
        save_file({name: each for name, each in tensors.items() if shards[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert torch.equal(logits(loaded(packed)), logits(loaded(plain)))


def test_a_stage_reads_the_packed_weights_of_its_layers_alone(tmp_path, monkeypatch):
    packed, _ = saved(tmp_path, "AWQ")
    read, dequantized = [], PackedTensor.dequantized

    def noted(tensor: PackedTensor) -> torch.Tensor:
        read.append(tensor.files[0][0])
        return dequantized(tensor)

    monkeypatch.setattr(PackedTensor, "dequantized", noted)
    Stage.load(packed, 1, 3, "cpu", "float32")
    assert {name.split(".")[2] for name in read} == {"1"}


@pytest.mark.parametrize("kernels_are", ["on", "off"])
def test_no_more_than_one_dequantized_weight_is_in_memory_while_a_model_loads(tmp_path, monkeypatch, kernels_are):
    """But without our kernels, where the weights are all there is."""
    packed, _ = saved(tmp_path, "W4A16")
    monkeypatch.setenv("DRAY_KERNELS", kernels_are)
    made, most, dequantized = list[weakref.ref[object]](), 0, packed_tensors._Numbers.dequantized

    def noted(numbers: object) -> object:
        nonlocal most
        weight_OI = dequantized(numbers)
        made.append(weakref.ref(weight_OI))
        most = max(most, sum(each() is not None for each in made))
        return weight_OI

    monkeypatch.setattr(packed_tensors._Numbers, "dequantized", noted)
    model = loaded(packed)
    assert model.num_coded_layers == (0 if kernels_are == "off" else 3 * PER_LAYER)
    assert (most <= 2) == (kernels_are == "on")


def test_zeros_as_a_bias_of_layers_that_have_none_are_passed_over_and_other_biases_refused(tmp_path):
    packed, plain = saved(tmp_path, "GPTQ")
    file, name = Path(packed) / "model.safetensors", "model.layers.1.mlp.up_proj.bias"
    tensors = load_file(file)
    save_file(tensors | {name: torch.zeros(SIZES["intermediate_size"])}, file)
    assert torch.equal(logits(loaded(packed)), logits(loaded(plain)))
    save_file(tensors | {name: torch.ones(SIZES["intermediate_size"])}, file)
    with pytest.raises(ValueError, match=f"has no place, first '{name}'"):
        LanguageModel.load(packed, "cpu")


def test_codes_of_another_file_that_comes_while_a_model_loads_are_not_taken(tmp_path, caplog):
    packed, plain = saved(tmp_path, "W4A16")
    other, _ = saved(tmp_path, "W4A16", seed=4)
    model = LanguageModel.load(packed, "cpu", "float32")
    shutil.copyfile(Path(other) / "model.safetensors", tmp_path / "other")
    (tmp_path / "other").replace(Path(packed) / "model.safetensors")
    with caplog.at_level(logging.WARNING):
        model.speed_up()
    assert "has other numbers now" in caplog.text
    assert model.num_coded_layers == 3 * (PER_LAYER - 1), "those are in codes that were laid out before"
    assert torch.equal(logits(model), logits(loaded(plain)))


def test_what_is_refused_when_it_is_read_ends_the_load_with_one_line(tmp_path):
    packed, _ = saved(tmp_path, "GPTQ")
    file, name = Path(packed) / "model.safetensors", "model.layers.1.mlp.up_proj"
    tensors = load_file(file)
    save_file(tensors | {f"{name}.g_idx": tensors[f"{name}.g_idx"].flip(0).contiguous()}, file)
    with pytest.raises(ValueError, match=rf"cannot load the model at .*: {name}.qweight has an order of inputs") as it:
        LanguageModel.load(packed, "cpu")
    assert "\n" not in str(it.value)
    save_file(tensors | {f"{name}.weight": torch.zeros(1)}, file)
    with pytest.raises(ValueError, match=f"has the weight of '{name}' twice, packed and as it is"):
        load_config(packed)


def test_a_packed_draft_may_be_replaced_by_one_that_has_learned_from_it(tmp_path):
    packed, plain = saved(tmp_path, "W4A16")
    check_replacement(plain, packed)
    check_replacement(packed, plain)


def test_packed_weights_of_modules_that_are_no_linear_layers_are_refused(tmp_path):
    fields = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 96, "eos_token_id": 0, "bos_token_id": None}
    network = build(GPT2Config(vocab_size=VOCAB_SIZE, **fields), 3)
    network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.clone())
    folder = Path(save(network, tmp_path))
    tensors = load_file(folder / "model.safetensors")
    name = "transformer.h.0.attn.c_proj"  # square, so its shape fits either way
    packed_folder, _ = saved(tmp_path / "other", "W4A16")
    layer = "model.layers.0.self_attn.q_proj"
    parts = {each: t for each, t in load_file(Path(packed_folder) / "model.safetensors").items() if layer in each}
    del tensors[f"{name}.weight"]
    save_file(tensors | {each.replace(layer, name): part for each, part in parts.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": KINDS["W4A16"].config}))
    with pytest.raises(ValueError, match=r"packed weights of 'transformer.h.0.attn.c_proj', a Conv1D"):
        LanguageModel.load(str(folder), "cpu")
