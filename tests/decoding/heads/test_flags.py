"""No field of a head's config.json is lost: it is read, it says what is computed anyway, or it is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from decoding.heads.format.eagle import read_eagle
from decoding.heads.format.folder import read_head, read_head_config, save_head
from decoding.heads.format.speculators import read_speculators
from tests.decoding.fp8.checkpoints import KINDS as FP8
from tests.decoding.fp8.checkpoints import quantized, scale_name, spread
from tests.decoding.heads.made_up import KINDS, head, same_tensors, say, write_folder
from tests.decoding.heads.test_spellings import BLOCKS, EAGLE, _written

PAIRS = {**EAGLE, "eagle_config": {}}
DFLASH = {**BLOCKS, "model_type": "qwen3", "dflash_config": {"mask_token_id": 7, "target_layer_ids": [0, 3]}}
# A flag that some engine acts on, where it stands, and what is said of it.
LOST: dict[str, tuple[dict[str, Any], str, dict[str, Any], str]] = {
    "a window of vLLM's own": (DFLASH, "dflash_config", {"use_swa": True}, "Dray does not know"),
    "an order of rotations": (DFLASH, "", {"is_neox_style": False}, "Dray computes True alone"),
    "norms of EAGLE-3.1 in a DFlash head": (DFLASH, "", {"fc_norm": True}, "Dray does not know"),
    "a scale of logits": (PAIRS, "", {"logit_scale": 0.5}, "Dray computes 1 alone"),
    "another activation": (PAIRS, "", {"hidden_act": "gelu"}, "Dray computes 'silu' or 'swish' alone"),
    "no norm": (PAIRS, "eagle_config", {"use_input_layernorm_in_first_layer": False}, "Dray computes True alone"),
    "heads of Medusa behind it": (PAIRS, "eagle_config", {"parallel_draft_step": 4}, "Dray computes 0 or 1 alone"),
    "an unknown field": (PAIRS, "", {"residual_multiplier": 0.22}, "Dray does not know"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_a_flag_that_is_not_read_is_refused_with_what_it_says_and_what_to_do(name: str, tmp_path: Path) -> None:
    fields, where, flag, says = LOST[name]
    ((field, value),) = flag.items()
    fields = {**fields, **({where: {**fields[where], **flag}} if where else flag)}
    with pytest.raises(ValueError, match="head") as refused:
        read_head_config(write_folder(tmp_path / "head", fields, {}))
    inside = f"{where} of config.json" if where else "config.json"
    assert f"has {field} {value!r} in {inside}, " in str(refused.value)
    assert says in str(refused.value)
    assert "use another version of the head" in str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_in_the_format_of_speculators_refuses_what_it_does_not_read(kind: Any, tmp_path: Path) -> None:
    fields = _written(kind, tmp_path)
    with pytest.raises(ValueError, match=r"has draft_temperature 0.7 in config.json, a field that Dray does not know"):
        read_speculators({**fields, "draft_temperature": 0.7})
    layers = {**fields["transformer_layer_config"], "attention_sinks": True}
    with pytest.raises(ValueError, match=r"has attention_sinks True in transformer_layer_config of config.json"):
        read_speculators({**fields, "transformer_layer_config": layers})


def test_flags_that_say_what_is_computed_anyway_change_nothing() -> None:
    nvidias = {"use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False}
    nvidias |= {"next_layer_regular": True, "parallel_draft_step": 1, "use_aux_hidden_state": True}
    old = {"torchscript": False, "pruned_heads": {}, "use_bfloat16": False, "is_causal": True, "logit_scale": 1.0}
    assert read_eagle({**PAIRS, **old, "eagle_config": nvidias}) == read_eagle(PAIRS)
    inner = {**DFLASH["dflash_config"], "attention_mode": "gqa", "use_swa": False, "projector_type": "dflash"}
    assert read_eagle({**DFLASH, "is_neox_style": True, "dflash_config": inner}) == read_eagle(DFLASH)


def test_a_block_is_causal_as_a_head_says_it_at_the_top_or_inside() -> None:
    slides = {**DFLASH, "layer_types": ["sliding_attention"], "use_sliding_window": True, "sliding_window": 4}
    inside = {**slides["dflash_config"], "causal": False}
    assert not read_eagle(slides).sliding_window_non_causal
    assert read_eagle({**slides, "is_causal": False}).sliding_window_non_causal
    assert read_eagle({**slides, "dflash_config": inside}).sliding_window_non_causal
    assert not read_eagle({**slides, "is_causal": True, "dflash_config": inside}).sliding_window_non_causal
    with pytest.raises(ValueError, match="has is_causal or causal true for layers without a sliding window"):
        read_eagle({**DFLASH, "is_causal": True})


@pytest.mark.parametrize("kind", FP8)
def test_fp8_weights_are_read_in_bfloat16_by_the_scales_of_their_format(kind: str, tmp_path: Path) -> None:
    one, folder = head("eagle3", layers={"intermediate_size": 160}), tmp_path / "head"
    save_head(one, str(folder), "speculators")
    say(str(folder), quantization_config=FP8[kind])
    stored, expected = dict(one.tensors), dict(one.tensors)
    for name in [name for name in stored if name.endswith("_proj.weight")]:
        weight_OI, scales_SG = quantized(stored[name], kind)
        stored |= {name: weight_OI, name.replace("weight", scale_name(kind)): scales_SG}
        expected[name] = (weight_OI.float() * spread(scales_SG, weight_OI.shape, kind)).to(torch.bfloat16)
        torch.testing.assert_close(expected[name].float(), one.tensors[name], atol=0.05, rtol=0.1)
    save_file(stored, folder / "model.safetensors")
    assert same_tensors(read_head(str(folder)).tensors, expected)
    del stored[f"layers.0.self_attn.o_proj.{scale_name(kind)}"]
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"has 'layers.0.self_attn.o_proj.weight' in F8_E4M3 of shape .* in bfloat16"):
        read_head(str(folder))


def test_what_config_json_says_of_quantization_counts_only_if_a_weight_is_quantized(tmp_path: Path) -> None:
    one, folder = head("eagle3"), tmp_path / "head"
    save_head(one, str(folder), "speculators")
    say(str(folder), quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})
    assert same_tensors(read_head(str(folder)).tensors, one.tensors)
    kept = {name: each for name, each in one.tensors.items() if name != "fc.weight"}
    nvfp4 = {"fc.weight": torch.zeros(32, 8, dtype=torch.uint8), "fc.weight_scale_2": torch.ones(1)}
    int4 = {"fc.weight_packed": torch.zeros(32, 8, dtype=torch.int32)}
    for tensors in (nvfp4, int4):
        save_file({**kept, **tensors}, folder / "model.safetensors")
        with pytest.raises(ValueError, match=r"is quantized \(modelopt\), and Dray runs unquantized checkpoints"):
            read_head(str(folder))


def test_a_head_that_says_that_it_does_not_draft_in_parallel_is_eagle3_whatever_mask_it_names() -> None:
    assert read_eagle({**PAIRS, "ptd_token_id": 3, "parallel_drafting": False}) == read_eagle(PAIRS)
