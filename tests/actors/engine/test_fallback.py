"""A model that was to run fused, or recorded, and does not, is said wherever an engine is described; and refused."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
from transformers import GPT2Config, GPTNeoXConfig

from actors.engines.dray import footer_facts, load_facts
from actors.engines.footprint import footprint
from actors.engines.model_check import check_models, why_not_fused
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings
from decoding import Engine, EngineOptions
from decoding.fused.recordings import LAYER_KERNELS
from decoding.network import probe
from jobs.driver.summary import fallbacks, print_fallbacks
from pipeline.run.check import CheckReport
from tests.decoding.stand_in_gpu import StandInGpu, record_forwards
from tests.decoding.tiny import build, llama_config, save

REQUIRED = EngineOptions(num_slots=2, draft_length="fixed", fused="required")
AUTO = replace(REQUIRED, fused="auto")


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> str:
    return save(build(llama_config(), seed=1), tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> str:
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
    return save(build(GPT2Config(vocab_size=48, **sizes), seed=1), tmp_path_factory.mktemp("gpt2"))


def test_fused_layers_are_no_fallback(target):
    engine = Engine.load(target, target, REQUIRED, device="cpu")
    assert engine.fallback == ""
    assert "fallback" not in footer_facts(engine)


@pytest.mark.parametrize("which", ["target", "draft"])
def test_fused_layers_that_deviate_are_said_in_footers_log_and_report_and_refused_if_required(
    target, monkeypatch, caplog, capsys, which
):
    real, numbers = probe._fused_deviation, iter([0.0, 0.5] * 2 if which == "draft" else [0.5, 0.0] * 2)
    monkeypatch.setattr(probe, "_fused_deviation", lambda *args: real(*args) + next(numbers))
    engine = Engine.load(target, target, AUTO, device="cpu")
    said = f"{which}: transformers' code runs in place of fused layers: logits are off by 5.0e-01"
    assert engine.fallback == footer_facts(engine)["fallback"] == load_facts(engine, target)["fallback"] == said
    assert "is slower than it should be" in caplog.text
    check = CheckReport(num_units=1, engines=[footer_facts(engine), {"device": "cpu"}])
    assert fallbacks(check) == [said]
    print_fallbacks(check)
    assert said in capsys.readouterr().out.replace("\n", " ")
    with pytest.raises(ValueError, match=r"engine.fused is 'required', but .* would be slow: .* off by 5"):
        Engine.load(target, target, REQUIRED, device="cpu")


def test_fused_layers_that_cannot_run_are_said_with_the_reason(target, monkeypatch):
    def fail(*_: object) -> float:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr("decoding.fused.decoder.FusedDecoder.forward", fail)
    engine = Engine.load(target, None, AUTO, device="cpu")
    assert "they cannot run here (RuntimeError: no kernel image is available" in engine.fallback


def test_forwards_that_a_device_refuses_to_record_are_said_and_refused_if_required(target, monkeypatch):
    record_forwards(monkeypatch)
    with StandInGpu().install(monkeypatch) as gpu:
        gpu.refuses = True
        engine = Engine.load(target, None, AUTO, device="cpu")
        assert not engine.target.facts()["graphs"]
        assert "forwards cannot be recorded here" in footer_facts(engine)["fallback"]
        with pytest.raises(ValueError, match="would be slow: forwards cannot be recorded here"):
            Engine.load(target, None, REQUIRED, device="cpu")


def test_a_family_that_does_not_run_fused_is_no_fallback_but_is_refused_if_required(target, gpt2):
    assert Engine.load(gpt2, None, AUTO, device="cpu").fallback == ""
    with pytest.raises(ValueError, match="no family that runs fused"):
        Engine.load(gpt2, None, REQUIRED, device="cpu")
    assert why_not_fused(target, "cpu") == ""
    assert why_not_fused(gpt2, "cpu") == "gpt2 is no family that runs fused on cpu (docs/models.md)"
    settings = GeneratorSettings(models=ModelSettings(target=gpt2, device="cpu", dtype="float32"))
    check_models(settings)
    with pytest.raises(ValueError, match="gpt2 is no family that runs fused"):
        check_models(replace(settings, engine=EngineSettings(fused="required")))
    with pytest.raises(ValueError, match="must be 'auto' or 'required', got 'on'"):
        EngineOptions(fused="on")


@pytest.mark.parametrize(("dtype", "exact", "is_refused"), [("bfloat16", "auto", True), ("bfloat16", "off", False)])
def test_ranks_in_16_bits_that_will_not_run_fused_are_refused_before_anything_is_loaded(
    tmp_path, dtype, exact, is_refused
):
    model = save(build(GPTNeoXConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2), seed=1), tmp_path)
    models, engine = ModelSettings(target=model, device="cpu", dtype=dtype), EngineSettings(exact=exact)
    settings = GeneratorSettings(models=models, engine=engine)
    settings = replace(settings, stages=replace(settings.stages, tensor_parallel=2))
    message = r"over 2 processes .* would depend on the batch \(gpt_neox is no family that runs fused on cpu"
    with pytest.raises(ValueError, match=message) if is_refused else nullcontext():
        check_models(settings)


def test_the_plan_of_a_gpu_counts_recordings_and_logits(target, gpt2):
    models = ModelSettings(target=target, device="cuda", dtype="bfloat16")
    settings = GeneratorSettings(models=models, engine=EngineSettings(num_slots=16))
    found = footprint(settings, target)
    logits = 16 * 9 * (2 * 48 * 2 + 48 // 8)  # of 9 positions, in bfloat16, with a mask
    kernels = 9 * 2 * LAYER_KERNELS  # of 9 lengths, 2 layers
    assert (found.recorded, 16 * found.logits_per_slot) == (kernels * (16 << 10), logits)
    stages = footprint(replace(settings, stages=replace(settings.stages, count=2)), target)
    assert (stages.recorded, stages.logits_per_slot) == (found.recorded, found.logits_per_slot)
    assert found.has_pages
    assert not stages.has_pages
    assert found.total == found.weights + found.cache + found.recorded + 16 * found.logits_per_slot
    assert "recordings 0.00" in str(found)
    assert footprint(replace(settings, models=replace(models, device="cpu")), target).recorded == 0
    assert footprint(replace(settings, models=replace(models, target=gpt2)), gpt2).recorded == 0
