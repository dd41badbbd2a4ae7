"""The probe measures whether a model computes the same on slots as alone, and quotes what it found."""

import json
import re
from contextlib import suppress

import pytest
import torch
import transformers

from decoding import Engine, SamplingParams
from decoding.cache import slot_attention as attention
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from decoding.network.probe_rows import FEWEST_POSITIONS, relative_deviation
from tests.decoding.families import family_network
from tests.decoding.tiny import build, engine_over, generated, llama_config, loaded, outputs, random_prompts, save

GPT_NEO = {"vocab_size": 48, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 300}
LOCAL = {"attention_types": [[["global", "local"], 1]], "initializer_range": 0.15}


@pytest.fixture
def target(folders):
    """A model of its own for each test: what the probe finds about a broken one stays with it."""
    return LanguageModel.load(folders.target, "cpu")


@pytest.mark.parametrize("window_size", [4, 256])  # 256 is what the published models have
def test_an_architecture_that_slices_its_own_mask_is_refused_as_one_that_cannot_run(tmp_path, window_size):
    path = save(build(transformers.GPTNeoConfig(**GPT_NEO, **LOCAL, window_size=window_size), seed=3), tmp_path)
    with pytest.raises(ValueError, match=r"cannot run: its architecture \(gpt_neo\)") as caught:
        Engine.load(path, device="cpu")
    assert path in str(caught.value)
    assert not re.search("comput|off by|windows", str(caught.value))


def test_an_architecture_that_adds_tokens_of_its_own_is_refused_as_one_that_cannot_run(tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "dim_head": 8, "dim_ff": 48}
    network = build(transformers.CpmAntConfig(vocab_size=48, **sizes), seed=3)
    assert not hasattr(network.config, "eos_token_id")
    network.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(ValueError, match=r"cannot run: its architecture \(cpmant\) .*RuntimeError") as caught:
        Engine.load(str(tmp_path), device="cpu")
    assert "windows" not in str(caught.value)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("context", [FEWEST_POSITIONS, 8, 20, 37, 42])
def test_a_model_that_sees_less_than_a_probe_is_probed_at_what_it_sees(tmp_path, family, context):
    name = "n_positions" if family == "gpt2" else "max_position_embeddings"
    path = save(family_network(family, **{name: context}), tmp_path)
    prompts = random_prompts([context - 3, 1, context // 2])
    written = Engine.load(path, device="cpu").generate(prompts, SamplingParams(temperature=0, max_tokens=3))
    assert outputs(written) == generated(path, prompts, 3)


def test_a_model_that_sees_too_little_for_any_probe_is_told_so(tmp_path):
    path = save(build(llama_config(max_position_embeddings=FEWEST_POSITIONS - 1), seed=1), tmp_path)
    with pytest.raises(ValueError, match="sees 4 positions, and a model is measured with 5"):
        Engine.load(path, device="cpu")


def _causal_but_one_off(*args: torch.Tensor) -> torch.Tensor:
    _, _, queries, keys = args
    return keys <= queries + 1


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("slot_mask", lambda real: lambda *a, **k: real(*a, **{**k, "mask_function": _causal_but_one_off})),
        ("slot_mask", lambda real: lambda *a, **k: torch.ones_like(real(*a, **k))),
        ("slot_mask", lambda real: lambda *a, **k: real(*a, **{**k, "q_offset": k["q_offset"] + 1})),
        ("slot_attention", lambda real: lambda *a, **k: real(*a, **{**k, "scaling": k["scaling"] * 1.01})),
    ],
)
def test_wrong_attention_is_caught(tmp_path, monkeypatch, name, broken):
    monkeypatch.setattr(attention, name, broken(getattr(attention, name)))
    model = loaded(build(llama_config(), seed=1), tmp_path)
    try:
        with pytest.raises(ValueError, match="does not compute the same"):
            check_model(model, "llama")
    finally:
        monkeypatch.undo()
        attention.install(model.network)


def test_a_model_that_is_loaded_with_another_attention_than_generate_uses_is_caught(tmp_path, monkeypatch):
    path, prompts = save(family_network("falcon_alibi"), tmp_path), random_prompts([9, 30])
    expected, real = generated(path, prompts, 16), transformers.PreTrainedModel.from_pretrained.__func__
    eager = {"attn_implementation": "eager"}  # which adds the positions of ALiBi twice
    with_eager = classmethod(lambda *a, **k: real(*a, **{**k, **eager}))
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", with_eager)
    model = LanguageModel.load(path, "cpu")
    written = engine_over(model).generate(prompts, SamplingParams(temperature=0, max_tokens=16))
    assert outputs(written) != expected
    with pytest.raises(ValueError, match="its logits come out wrong"):
        check_model(model, path)


@pytest.mark.parametrize(("named", "expected"), [("eager", "eager"), ("sdpa", "sdpa"), ("flash_attention_2", "sdpa")])
@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation"])
def test_a_model_runs_by_the_attention_that_its_configuration_names_and_another_packages_is_the_default(
    tmp_path, field, named, expected
):
    path, prompts = save(family_network("falcon_alibi"), tmp_path), random_prompts([9, 30])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, field: expected}))
    right = generated(path, prompts, 16)
    (tmp_path / "config.json").write_text(json.dumps({**config, field: named}))
    model = LanguageModel.load(path, "cpu")
    assert model.network.config._attn_implementation == expected
    check_model(model, path)
    written = engine_over(model).generate(prompts, SamplingParams(temperature=0, max_tokens=16))
    assert outputs(written) == right


def test_a_model_that_does_not_bear_packing_gets_rectangles(target):
    forward = target.network.forward

    def refuses_packed_rows(*args, slot_plan=None, **kwargs):
        if slot_plan is not None:
            raise TypeError("unexpected keyword argument 'slot_plan'")
        return forward(*args, **kwargs)

    target.network.forward = refuses_packed_rows
    check_model(target, "llama")
    assert not target.packs_rows


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), torch.AcceleratorError("illegal access")]
)
def test_memory_that_runs_out_and_a_device_that_fails_are_no_verdict_on_the_model(folders, monkeypatch, error):
    forward, has_failed = LanguageModel._forward, []
    while True:  # at the first forward of the probe, then at the second, until it has no more
        fails = iter([*[False] * len(has_failed), True])

        def failing(self, *args, fails=fails, **kwargs):
            if next(fails, False):
                has_failed.append(True)
                raise error
            return forward(self, *args, **kwargs)

        monkeypatch.setattr(LanguageModel, "_forward", failing)
        num_before, model = len(has_failed), LanguageModel.load(folders.target, "cpu")
        with suppress(type(error)):
            check_model(model, "m")
            break
    assert len(has_failed) == num_before > 4, "a forward that failed was no verdict"


def _off_by_one(real):
    return lambda starts, *args, **kwargs: real([max(start - 1, 0) for start in starts], *args, **kwargs)


def _raising(_):
    return lambda *args, **kwargs: torch.zeros(2) + torch.zeros(3)


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (_off_by_one, "does not compute the same"),
        (_raising, "'llama' cannot run on the slot cache: RuntimeError: The size of tensor a"),
    ],
)
def test_a_rollback_that_is_off_by_one_and_a_model_that_raises_are_refused(target, monkeypatch, plant, said):
    monkeypatch.setattr(target, "forward", plant(target.forward))
    with pytest.raises(ValueError, match=said):
        check_model(target, "llama")


def test_logits_that_are_not_numbers_are_refused(tmp_path):
    network = build(llama_config(), seed=1)
    with torch.no_grad():
        network.get_output_embeddings().weight[3] = float("nan")
    with pytest.raises(ValueError, match="logits that are not finite numbers"):
        Engine.load(save(network, tmp_path), device="cpu")


@pytest.mark.parametrize("row", range(3))
def test_a_single_row_without_numbers_is_no_small_deviation(row):
    expected = list(torch.ones(3, 2, 4))
    found = list(torch.ones(3, 2, 4))
    found[row][1, 2] = float("nan")
    assert not relative_deviation(found, expected) <= 1.0
    assert not relative_deviation(expected, found) <= 1.0
