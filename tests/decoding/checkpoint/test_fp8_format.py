"""FP8 checkpoints are read as they were published, or refused by name: nothing is dequantized or cast quietly."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from decoding.checkpoint.fp8_format import fp8_format
from decoding.checkpoint.loading import footprint_of
from decoding.checkpoint.rank import check_can_be_sharded
from decoding.checkpoint.supported import load_config
from decoding.fp8.linear import Fp8Linear, arithmetic_on
from decoding.network.language_model import LanguageModel
from tests.decoding.checkpoint.test_model_files import refused
from tests.decoding.fp8.checkpoints import FAMILIES, KINDS, compressed_tensors, saved_fp8, say, scale_name


def tensors_of(folder: str) -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "model.safetensors")


def fp8_layers(model: LanguageModel) -> dict[str, Fp8Linear]:
    return {name: module for name, module in model.network.named_modules() if isinstance(module, Fp8Linear)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_and_scales_are_loaded_bit_for_bit(family, kind, tmp_path):
    path = saved_fp8(family, tmp_path, kind)
    layers, tensors = fp8_layers(LanguageModel.load(path, "cpu")), tensors_of(path)
    scaled = {name.removesuffix(f".{scale_name(kind)}") for name in tensors if name.endswith(scale_name(kind))}
    assert set(layers) == scaled
    assert len(layers) == 7 * 2
    for name, layer in layers.items():
        assert torch.equal(layer.weight.view(torch.uint8), tensors[f"{name}.weight"].view(torch.uint8))
        assert layer.scales.dtype is torch.float32
        assert torch.equal(layer.scales, tensors[f"{name}.{scale_name(kind)}"].float())


def test_layers_that_the_checkpoint_keeps_are_not_rounded(tmp_path):
    kept = ["model.layers.0.mlp.down_proj", "model.layers.1.self_attn.v_proj"]
    for number, kind in enumerate(KINDS):
        model = LanguageModel.load(saved_fp8("llama", tmp_path / str(number), kind, kept), "cpu")
        assert len(fp8_layers(model)) == 7 * 2 - 2
        assert all(model.network.get_submodule(name).weight.dtype is torch.bfloat16 for name in kept)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_weights_take_as_many_bytes_as_foretold_and_stay_fp8(family, kind, tmp_path):
    path = saved_fp8(family, tmp_path, kind)
    foretold = footprint_of(load_config(path), "bfloat16", num_slots=3, max_model_len=40)
    model = LanguageModel.load(path, "cpu")
    scales = [tensor for name, tensor in tensors_of(path).items() if "weight_scale" in name]
    on_disk = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(path).values())
    widened = sum(scale.numel() * (4 - scale.element_size()) for scale in scales)  # scales in bfloat16 become float32
    assert model.num_weight_bytes == foretold.weights == on_disk + widened
    model.speed_up()
    assert all(layer.weight.dtype is torch.float8_e4m3fn for layer in fp8_layers(model).values())


def test_an_8b_model_takes_one_byte_a_weight():
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_key_value_heads": 8}
    config = LlamaConfig(**sizes, vocab_size=128256)
    linears = 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336)
    others = 2 * (2 * 128256 * 4096 + (2 * 32 + 1) * 4096)  # bytes of embedding, head and norms
    assert footprint_of(config, "bfloat16", 1, 1).weights == 2 * linears + others
    config.quantization_config = KINDS["blocks"]
    assert footprint_of(config, "bfloat16", 1, 1).weights == linears + 4 * linears // 128**2 + others
    config.quantization_config = KINDS["rows"]
    rows = 32 * (2 * 4096 + 2 * 1024 + 2 * 14336 + 4096)
    assert footprint_of(config, "bfloat16", 1, 1).weights == linears + 4 * rows + others
    assert fp8_format(config) is not None  # the configuration is left as it was


def _with(kind: str, path: str, value: object) -> dict[str, object]:
    """Return what a kind of checkpoint says with another value at this place."""
    said = copy.deepcopy(KINDS[kind])
    inner: dict = said
    *outer, last = path.split("/")
    for name in outer:
        inner = inner[name]
    inner[last] = value
    return said


def _in_group(path: str, value: object) -> dict[str, object]:
    return _with("rows", f"config_groups/group_0/{path}", value)


BLOCK = KINDS["blocks by llm-compressor"]["config_groups"]["group_0"]  # type: ignore[index]
_TENSOR, _CHANNEL, _SPARSE = {"strategy": "tensor"}, {"strategy": "channel"}, {"format": "sparse-24-bitmask"}
REFUSED: dict[str, dict[str, object]] = {
    "activation_scheme is 'static'": _with("blocks", "activation_scheme", "static"),
    "it does not say activation_scheme": _with("blocks", "activation_scheme", None),
    "weight_block_size is [64, 64]": _with("blocks", "weight_block_size", [64, 64]),
    "it does not say weight_block_size": _with("blocks", "weight_block_size", None),
    "fmt is 'e5m2'": _with("blocks", "fmt", "e5m2"),
    "scale_fmt is 'ue8m0'": _with("blocks", "scale_fmt", "ue8m0"),
    "modules_to_convert is ['embed']": _with("blocks", "modules_to_convert", ["embed"]),
    "novel is 1, which Dray does not know": _with("blocks", "novel", 1),
    "format is 'int-quantized'": _with("rows", "format", "int-quantized"),
    "it does not say config_groups": _with("rows", "config_groups", {}),
    "kv_cache_scheme is {'num_bits': 8}": _with("rows", "kv_cache_scheme", {"num_bits": 8}),
    "transform_config is {'config_groups': 1}": _with("rows", "transform_config", {"config_groups": 1}),
    "sparsity_config.format is 'sparse-24-bitmask'": _with("rows", "sparsity_config", _SPARSE),
    "quantization_status is 'initialized'": _with("rows", "quantization_status", "initialized"),
    "config_groups.group_0.weights.strategy is 'tensor'": compressed_tensors(_TENSOR, {"strategy": "token"}),
    "config_groups.group_0.input_activations.strategy is 'tensor'": compressed_tensors(_CHANNEL, _TENSOR),
    "config_groups.group_0.weights does not say type": _in_group("weights/type", None),
    "config_groups.group_0.input_activations.dynamic is False": _in_group("input_activations/dynamic", False),
    "config_groups.group_0.input_activations does not say type": _in_group("input_activations", None),
    "config_groups.group_0.output_activations is {'num_bits': 8}": _in_group("output_activations", {"num_bits": 8}),
    "config_groups.group_0.weights.num_bits is 4": _in_group("weights/num_bits", 4),
    "config_groups.group_0.weights.block_structure is [64, 64]": _with(
        "blocks by llm-compressor", "config_groups/group_0/weights/block_structure", [64, 64]
    ),
    "modules_to_not_convert is 'lm_head', which is no list of names": _with(
        "blocks", "modules_to_not_convert", "lm_head"
    ),
    "ignore has 're:(', which is no pattern (missing ), unterminated subpattern at position 0)": _with(
        "rows", "ignore", ["lm_head", "re:("]
    ),
    "config_groups is ['group_0']": _with("rows", "config_groups", ["group_0"]),
    "config_groups.group_0 is 'fp8'": _with("rows", "config_groups/group_0", "fp8"),
    "config_groups.group_0.weights is 'fp8'": _in_group("weights", "fp8"),
    "config_groups.group_0.weights.strategy is ['channel']": _in_group("weights/strategy", ["channel"]),
    "config_groups.group_0.targets is 'Linear', which is no list of names": _in_group("targets", "Linear"),
    "its layers are of several kinds (block, channel)": _with("rows", "config_groups/group_1", BLOCK),
}


@pytest.mark.parametrize("why", REFUSED)
def test_another_kind_of_fp8_is_refused_by_name_before_any_weight_is_read(why, tmp_path):
    said = REFUSED[why]
    saved_fp8("llama", tmp_path, "rows")
    say(tmp_path, quantization_config=said)
    assert f"is quantized ({said['quant_method']}), and Dray runs" in refused(tmp_path)
    assert f"or for rows: {why}; use the original one" in refused(tmp_path)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"num_experts": 8}, "it is a mixture of experts (num_experts is 8)"),
        ({"n_routed_experts": 256}, "it is a mixture of experts (n_routed_experts is 256)"),
        ({"num_local_experts": 4}, "it is a mixture of experts (num_local_experts is 4)"),
        ({"text_config": {}}, "it is a model of several parts"),
    ],
)
def test_models_whose_fp8_layers_are_not_plain_linear_ones_are_refused_by_name(fields, why, tmp_path):
    saved_fp8("llama", tmp_path, "blocks")
    say(tmp_path, **fields)
    assert why in refused(tmp_path)


def test_what_says_nothing_new_is_no_reason_to_refuse(tmp_path):
    path = saved_fp8("llama", tmp_path, "rows")
    said = KINDS["rows"] | {"version": "0.12.2", "transform_config": {}, "sparsity_config": {"format": "dense"}}
    say(tmp_path, quantization_config=None, compression_config=said, num_experts=0)
    assert len(fp8_layers(LanguageModel.load(path, "cpu"))) == 7 * 2


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Change tensors of the first layer's query projection; None: remove it."""
    found = tensors_of(str(folder))
    for name, tensor in tensors.items():
        whole = f"model.layers.0.self_attn.q_proj.{name}"
        found = found | {whole: tensor} if tensor is not None else {n: t for n, t in found.items() if n != whole}
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})


SCALES = {"weight_scale_inv": torch.ones(2, 2, dtype=torch.uint8)}
WEIGHT = "the weight of 'model.layers.0.self_attn.q_proj' is {}, with scales in"


@pytest.mark.parametrize(
    ("kind", "tensors", "said"),
    [
        ("blocks", {"weight_scale_inv": None}, "q_proj.weight' in F8_E4M3, without the scales"),
        ("blocks", {}, "in F8_E4M3, without the scales that its config.json would name"),
        ("blocks", SCALES, "with scales in U8: expected F8_E4M3, with F32 or BF16 or F16"),
        ("rows", {"weight": torch.ones(256, 256).to(torch.bfloat16)}, WEIGHT.format("BF16")),
        ("rows", {"weight": torch.ones(256, 256).to(torch.int8)}, WEIGHT.format("I8")),
        ("rows", {"weight": torch.ones(256, 256).to(torch.float8_e5m2)}, WEIGHT.format("F8_E5M2")),
    ],
    ids=["no scales", "nothing said", "scales that float32 lacks", "bfloat16", "int8", "another FP8"],
)
def test_weights_and_scales_that_would_be_cast_or_lack_each_other_arerefused(kind, tensors, said, tmp_path):
    saved_fp8("llama", tmp_path, kind)
    change(tmp_path, **tensors)
    if not tensors:
        say(tmp_path, quantization_config=None)
    assert said in refused(tmp_path)


def test_scales_of_another_shape_arerefused(tmp_path):
    saved_fp8("llama", tmp_path, "blocks")
    change(tmp_path, weight_scale_inv=torch.ones(1, 1))
    with pytest.raises(ValueError, match="cannot load the model at"):
        LanguageModel.load(str(tmp_path), "cpu")


def test_scales_of_a_layer_that_the_configuration_keeps_arerefused(tmp_path):
    saved_fp8("llama", tmp_path, "blocks")
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    say(tmp_path, quantization_config=config | {"modules_to_not_convert": ["lm_head", "model.layers.0.mlp"]})
    with pytest.raises(ValueError, match=r"have 3 tensors for which .* first 'model.layers.0.mlp.down_proj.weight_sc"):
        LanguageModel.load(str(tmp_path), "cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_float32_beside_fp8_isrefused(kind, tmp_path):
    path = saved_fp8("llama", tmp_path, kind)
    with pytest.raises(ValueError, match=r"has FP8 weights, which do not go with models\.dtype float32"):
        LanguageModel.load(path, "cpu", "float32")
    assert LanguageModel.load(path, "cpu").dtype is torch.bfloat16
    assert LanguageModel.load(path, "cpu", "float16").dtype is torch.float16


def test_ranks_do_not_share_fp8_layers(tmp_path):
    path = saved_fp8("llama", tmp_path, "blocks")
    with pytest.raises(ValueError, match="has FP8 or packed weights, whose layers are not shared out among processes"):
        check_can_be_sharded(load_config(path), path, 2)


@pytest.mark.parametrize(("capability", "runs"), [((8, 0), False), ((8, 6), False), ((8, 9), True), ((9, 0), True)])
def test_a_gpu_without_fp8_instructions_is_refused_by_name(capability, runs, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    monkeypatch.setenv("DRAY_TRITON", "off")
    if runs:
        assert arithmetic_on(torch.device("cuda")) is not None
        return
    with pytest.raises(ValueError, match=rf"capability 8\.9 or later .* A100 has 8\.{capability[1]}; use the unquant"):
        arithmetic_on(torch.device("cuda"))
