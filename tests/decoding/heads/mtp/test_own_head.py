"""A head is found in its target's files by name, refused by name where it cannot be read, and measured at load."""

import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from actors.engines.footprint import footprint
from actors.placement import StageSettings
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings
from decoding import Engine, EngineOptions, SamplingParams
from decoding.engine.draft_folder import check_replacement
from decoding.heads.mtp.files import own_head, settled_draft
from decoding.heads.target_parts import load_ends
from tests.decoding.heads.mtp.tiny_targets import VOCAB_SIZE, save_target
from tests.decoding.tiny import build, llama_config, outputs, random_prompts, save


@pytest.fixture
def target(tmp_path) -> str:
    return save_target("qwen3_5", tmp_path / "target")[0]


def change(path: str, **changed: torch.Tensor | None) -> None:
    """Write a target's file again with other tensors, whose dots are two underscores here; None takes one out."""
    file = Path(path) / "model.safetensors"
    tensors = load_file(file) | {name.replace("__", "."): tensor for name, tensor in changed.items()}
    save_file({name: each for name, each in tensors.items() if each is not None}, file, metadata={"format": "pt"})


def refusal(path: str, draft: str = "mtp") -> str:
    with pytest.raises(ValueError, match="head") as failure:
        Engine.load(path, draft, device="cpu")
    message = str(failure.value)
    assert path in message
    assert "\n" not in message
    return message


def perfect(path: str) -> None:
    """Make the target's next token depend on its newest one alone, and the head know it."""
    tensors = load_file(Path(path) / "model.safetensors")
    silent = [name for name in tensors if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))]
    changed = {name.replace(".", "__"): torch.zeros_like(tensors[name]) for name in silent}
    changed["mtp__fc__weight"] = torch.cat([torch.eye(32), torch.zeros(32, 32)], dim=1)
    changed["mtp__pre_fc_norm_embedding__weight"] = torch.zeros(32)
    changed["mtp__norm__weight"] = tensors["model.norm.weight"].clone()
    change(path, **changed)


@pytest.mark.parametrize("draft", ["mtp", "auto"])
def test_a_head_that_knows_its_target_is_accepted_always(target, draft):
    perfect(target)
    options = EngineOptions(num_slots=2, num_speculative_tokens=4, draft_length="fixed")
    params = SamplingParams(max_tokens=12, temperature=0.8)
    engine, plain = (Engine.load(target, each, options, device="cpu") for each in (draft, None))
    found, expected = (each.generate(random_prompts([5, 2, 7], VOCAB_SIZE), params) for each in (engine, plain))
    assert outputs(found) == outputs(expected)
    assert sum(row.num_accepted_tokens for row in found) == sum(row.num_draft_tokens for row in found) > 20


def test_a_head_beside_another_target_is_refused_by_what_it_agrees_on(target):
    perfect(target)
    change(target, mtp__fc__weight=torch.cat([-torch.eye(32), torch.zeros(32, 32)], dim=1))
    assert "of the tokens, expected at least 15%" in refusal(target)


def test_files_without_a_head_are_refused_by_name_and_auto_drafts_nothing(target, caplog):
    head = {name: None for name in load_file(Path(target) / "model.safetensors") if name.startswith("mtp.")}
    change(target, **{name.replace(".", "__"): None for name in head})
    assert "carries no MTP head in its files" in refusal(target)
    with caplog.at_level(logging.INFO):
        engine = Engine.load(target, "auto", device="cpu")
    assert "no draft: " in caplog.text
    found = engine.generate([[1, 2]], SamplingParams(max_tokens=3))
    assert found[0].num_draft_tokens == 0


def test_a_family_that_is_not_known_is_refused_by_name(tmp_path):
    path = save(build(llama_config(), seed=1), tmp_path / "llama")
    assert "(llama) could not be read: known are deepseek_v3, glm4_moe" in refusal(path)
    assert settled_draft("auto", path)[0] is None
    options = EngineOptions(drafter="hybrid")
    with pytest.raises(
        ValueError, match=r"drafter is 'hybrid', and .*'auto' found none: .* \(llama\) could not be read"
    ):
        Engine.load(path, "auto", options, device="cpu")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"mtp__fc__weight": torch.zeros(32, 64, dtype=torch.float8_e4m3fn)}, "in F8_E4M3, without the scales"),
        ({"mtp__fc__weight": torch.zeros(32, 32, dtype=torch.uint8)}, "in U8: it is quantized"),
        (
            {"mtp__fc__weight": None, "mtp__fc__qweight": torch.zeros(8, 64, dtype=torch.int32)},
            "in I32: it is quantized",
        ),
        ({"mtp__fc__weight": None}, "'mtp.fc.weight' is lacking"),
        ({"mtp__embed_tokens__weight": torch.zeros(VOCAB_SIZE, 32)}, "'mtp.embed_tokens.weight' is lacking, or has no"),
    ],
)
def test_a_head_that_cannot_be_read_is_refused_before_the_target_is_loaded(target, monkeypatch, changed, says):
    change(target, **changed)
    monkeypatch.setattr("decoding.engine.load.load_checked", None)
    with pytest.raises(ValueError, match=re.escape(says) + ".*(use another checkpoint|leave models.draft out)"):
        Engine.load(target, "mtp", device="cpu")


def test_a_layer_behind_the_targets_last_one_is_no_head_without_a_projection(tmp_path):
    path, _ = save_target("deepseek_v3", tmp_path / "target")
    assert own_head(path).modules[0]["projection"] == "model.layers.2.eh_proj.weight"
    change(path, model__layers__2__eh_proj__weight=None)
    assert "tensors for which DeepseekV3ForCausalLM has no place" in refusal_of_target(path)


def refusal_of_target(path: str) -> str:
    with pytest.raises(ValueError, match="tensors") as failure:
        Engine.load(path, device="cpu")
    return str(failure.value)


def test_a_plan_knows_the_drafter_and_the_memory_of_the_head(target):
    models = ModelSettings(target=target, draft="mtp", dtype="float32", device="cpu")
    settings = GeneratorSettings(models=models, engine=EngineSettings(num_slots=2, max_model_len=9))
    assert settings.engine.pick_drafter("mtp") == settings.engine.pick_drafter("auto") == "mtp"
    numbers = sum(
        each.numel() for name, each in load_file(Path(target) / "model.safetensors").items() if "mtp." in name
    )
    found = footprint(settings, "mtp")
    assert (found.weights, found.cache) == (4 * numbers, 4 * 2 * 10 * 2 * 2 * 8)
    assert str(own_head(target)) == "mtp head in the target's own files, modules: 1"
    apart = footprint(replace(settings, stages=StageSettings(count=2)), "mtp")
    copies = sum(each.numel() for each in load_ends(target, "cpu", "float32").parameters())
    assert (apart.weights, apart.cache) == (found.weights + 4 * copies, found.cache)
    with pytest.raises(ValueError, match="is replaced with its target alone"):
        check_replacement(target, "mtp")


def test_the_layers_with_states_that_a_nemotron_head_might_have_are_refused(tmp_path):
    path, _ = save_target("nemotron_h", tmp_path / "target")
    file = Path(path) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"mtp_layers_block_type": ["linear_attention", "moe"]}))
    with pytest.raises(ValueError, match="has layers with states"):
        own_head(path)
