"""Older and other spellings of a head's config.json say the same thing, and what is not said gets the known default."""

import json
from pathlib import Path
from typing import Any

import pytest

from decoding.heads.format.eagle import read_eagle
from decoding.heads.format.folder import save_head
from decoding.heads.format.speculators import read_speculators
from tests.decoding.heads.made_up import KINDS, LLAMA, D, V, head, head_config

EAGLE = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": D}
BLOCKS = {**LLAMA, "architectures": ["DFlashDraftModel"], "block_size": 8}


def _written(kind: Any, folder: Path) -> dict[str, Any]:
    save_head(head(kind), str(folder / kind), "speculators")
    fields: dict[str, Any] = json.loads((folder / kind / "config.json").read_text())
    return fields


@pytest.mark.parametrize("kind", KINDS)
def test_older_spellings_of_layers_are_the_newer_ones(kind: Any, tmp_path: Path) -> None:
    fields = _written(kind, tmp_path)
    expected = read_speculators(fields)
    layers = fields["transformer_layer_config"]
    rope = layers.pop("rope_parameters")
    layers |= {"rope_theta": rope["rope_theta"], "rope_scaling": None}
    fields["torch_dtype"] = fields.pop("dtype")
    layers.pop("dtype")
    fields["architectures"] = ["SomeSpeculator"]
    fields |= {"auto_map": {"": "config.Some"}, "has_no_defaults_at_init": False}
    assert read_speculators(fields) == expected


def test_old_rope_scaling_of_llama_is_kept() -> None:
    scaling = {"type": "linear", "factor": 2.0}
    config = read_eagle({**EAGLE, "rope_scaling": scaling})
    rope = config.layer_config["rope_parameters"]
    assert (rope["rope_type"], rope["factor"], rope["rope_theta"]) == ("linear", 2.0, 5000.0)


@pytest.mark.parametrize(
    ("kind", "silent", "assumed"),
    [
        ("eagle3", "norm_before_residual", "false, the default of speculators (vLLM would take true)"),
        ("peagle", "norm_before_residual", "false, the default of speculators"),
        ("dflash", "block_size", "8, the default of speculators"),
        ("dspark", "block_size", "8, the default of speculators"),
    ],
)
def test_a_field_that_speculators_leaves_out_gets_its_default_and_is_named(
    kind: Any, silent: str, assumed: str, tmp_path: Path
) -> None:
    fields = _written(kind, tmp_path)
    del fields[silent]
    config = read_speculators(fields)
    assert config.assumed == (f"{silent}: {assumed}",)
    assert getattr(config, silent) == (8 if silent == "block_size" else False)


def test_a_dspark_head_samples_from_the_anchor_unless_it_says_otherwise(tmp_path: Path) -> None:
    for kind in ("dspark", "dflash"):
        fields = _written(kind, tmp_path)
        del fields["sample_from_anchor"]
        assert read_speculators(fields).sample_from_anchor == (kind == "dspark")


def test_the_default_of_draft_vocab_size_is_that_of_speculators(tmp_path: Path) -> None:
    fields = _written("eagle3", tmp_path)
    del fields["draft_vocab_size"]
    fields["transformer_layer_config"]["vocab_size"] = 50_000
    config = read_speculators(fields)
    assert config.draft_vocab_size == 32_000
    assert config.assumed == ("draft_vocab_size: 32000, the default of speculators",)


@pytest.mark.parametrize(
    ("kind", "num_tokens"), [("eagle3", 3), ("peagle", 8), ("dflash", 5), ("dflash2", 5), ("dspark", 6)]
)
def test_the_number_of_tokens_follows_from_the_kind_where_it_is_not_said(
    kind: Any, num_tokens: int, tmp_path: Path
) -> None:
    fields = _written(kind, tmp_path)
    fields["speculators_config"]["proposal_methods"] = []
    config = read_speculators(fields)
    assert config.num_speculative_tokens == num_tokens
    assert config.assumed == (f"speculative_tokens: {num_tokens}, as training has it by default",)


def test_the_default_method_of_proposal_counts_and_not_the_first(tmp_path: Path) -> None:
    fields = _written("eagle3", tmp_path)
    methods = fields["speculators_config"]["proposal_methods"]
    methods.insert(0, {"proposal_type": "other", "speculative_tokens": 9})
    assert read_speculators(fields).num_speculative_tokens == 3
    fields["speculators_config"]["default_proposal_method"] = "unlisted"
    assert read_speculators(fields).num_speculative_tokens == 9


@pytest.mark.parametrize("place", ["top", "inner"])
def test_norms_of_eagles_config_are_read_wherever_they_stand(place: str) -> None:
    said = {"norm_before_fc": True, "norm_output": True, "norm_before_residual": True}
    fields = {**EAGLE, **said} if place == "top" else {**EAGLE, "eagle_config": said}
    config = read_eagle(fields)
    assert (config.norm_before_fc, config.norm_output, config.norm_before_residual) == (True, True, True)
    assert not any(line.startswith("norm") for line in config.assumed)


def test_what_ids_of_an_eagle_config_mean_is_unknown_until_it_is_said() -> None:
    said: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True}
    config = read_eagle({**EAGLE, "eagle_config": said})
    assert (config.layer_ids, config.layer_ids_are) == ((1, 5, 8), "unknown")
    with pytest.raises(ValueError, match=r"does not say whether its layer ids \[1, 5, 8\] are those of layers whose"):
        config.layer_ids_as("inputs")
    said["aux_hidden_state_layer_ids_are"] = "outputs"
    assert read_eagle({**EAGLE, "eagle_config": said}).layer_ids_as("inputs") == (2, 6, 9)


def test_a_class_or_a_reduced_vocabulary_tells_an_eagle3_head() -> None:
    for fields in (EAGLE, {**EAGLE, "architectures": ["LlamaForCausalLM"]}):
        assert (read_eagle(fields).kind, read_eagle(fields).draft_vocab_size) == ("eagle3", D)
    without = {name: value for name, value in EAGLE.items() if name != "draft_vocab_size"}
    assert read_eagle(without).draft_vocab_size == V


@pytest.mark.parametrize("is_inside", [True, False])
def test_block_size_of_dflash_is_read_inside_and_outside_of_its_object(is_inside: bool) -> None:
    inner: dict[str, Any] = {"mask_token_id": 7, "target_layer_ids": [0, 3]}
    fields: dict[str, Any] = {**BLOCKS, "model_type": "qwen3", "dflash_config": inner}
    if is_inside:
        inner["block_size"] = fields.pop("block_size")
    config = read_eagle(fields)
    assert (config.block_size, config.layer_ids_as("inputs"), config.mask_token_id) == (8, (1, 4), 7)
    assert not config.sliding_window_non_causal
    inner["causal"] = False
    assert read_eagle(fields).sliding_window_non_causal


@pytest.mark.parametrize("is_inside", [True, False])
def test_dspark_is_read_as_deepseek_and_as_specforge_write_it(is_inside: bool) -> None:
    own = {"mask_token_id": 7, "target_layer_ids": [0, 3], "markov_rank": 4, "markov_head_type": "gated"}
    fields: dict[str, Any] = {**BLOCKS, "model_type": "qwen3"}
    if is_inside:
        fields |= {"architectures": ["DSparkDraftModel"], "dflash_config": {**own, "projector_type": "dspark"}}
    else:
        fields |= {"architectures": ["Qwen3DSparkModel"], **own}
    config = read_eagle(fields)
    assert (config.kind, config.markov_rank, config.markov_head_type) == ("dspark", 4, "gated")
    assert (config.sample_from_anchor, config.num_speculative_tokens) == (True, 8)
    assert (config.enable_confidence_head, config.confidence_head_with_markov) == (True, True)


def test_default_layer_ids_follow_from_the_number_of_layers_and_must_be_distinct() -> None:
    config = head_config("eagle3", layer_ids=None)
    assert config.settle_layer_ids(36).layer_ids_as("inputs") == (2, 18, 33)
    assert config.settle_layer_ids(36).layer_ids_as("outputs") == (1, 17, 32)
    for num_layers in (2, 4, 5, 6):
        with pytest.raises(ValueError, match=r"would be \[2, \d, -?\d\], which are not 3 layers; name them"):
            config.settle_layer_ids(num_layers)
