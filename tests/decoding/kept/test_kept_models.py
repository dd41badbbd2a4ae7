"""A model that is kept as it is laid out computes what it computed before, and no other file is taken for it."""

import logging
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import Gemma3TextConfig, Phi3Config

from decoding import Engine, EngineOptions, SamplingParams
from decoding.checkpoint import model_files
from decoding.fused.packed_linear import packed_layers
from decoding.kept import file, models
from decoding.kept.models import load_checked
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from tests.damage import damage
from tests.decoding.codes.packed_folders import KINDS, NOT_IN_CODES, save_packed
from tests.decoding.codes.test_coded_models import SIZES, logits, save_coded
from tests.decoding.tiny import build, llama_config, random_prompts, save

WIDE = {"hidden_size": 64, "intermediate_size": 96}
TIED = llama_config(**WIDE, tie_word_embeddings=True)
CONFIGS = {
    "tied": TIED,
    "untied, with biases": llama_config(**WIDE, attention_bias=True, mlp_bias=True),
    "gate and up in one matrix": Phi3Config(vocab_size=48, **SIZES),
    "a scaled embedding": Gemma3TextConfig(vocab_size=48, **SIZES | {"num_hidden_layers": 7, "head_dim": 16}),
}


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.dray"))


def saved(folder: Path, seed: int = 1, config: object = TIED) -> str:
    return save(build(config, seed), folder, eos_token_id=[7, 9])


def facts(model: LanguageModel) -> tuple[object, ...]:
    numbers = model.close_call, model.num_weight_bytes, model.num_bytes_read, model.num_coded_layers
    return *numbers, model.eos_token_ids, model.vocab_size, model.is_batch_invariant, model.packs_rows


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bfloat16 by tiles"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_kept_model_computes_the_same_bits_and_says_the_same_of_itself(folder, tmp_path, monkeypatch, name, dtype):
    dtype, _, is_tiled = dtype.partition(" ")
    monkeypatch.setenv("DRAY_KERNELS_TILES", "emulated" if is_tiled else "off")
    path = saved(tmp_path / "model", config=CONFIGS[name])
    first, second = (load_checked(path, "cpu", dtype) for _ in range(2))
    plain = LanguageModel.load(path, "cpu", dtype)
    check_model(plain, path)
    assert (plain.is_kept, first.is_kept, second.is_kept) == (False, False, True)
    assert all(layer.is_lent for model in (first, second) for layer in packed_layers(model.network))
    for num_rows in (1, 9):
        assert torch.equal(logits(first, num_rows), logits(plain, num_rows))
        assert torch.equal(logits(second, num_rows), logits(plain, num_rows))
    assert facts(second) == facts(first) == facts(plain)
    weights = second.weights.snapshot()
    assert weights.keys() == plain.weights.snapshot().keys()
    assert all(torch.equal(weights[of], each) for of, each in plain.weights.snapshot().items())
    assert len(files(folder)) == 1


@pytest.mark.parametrize(("kind", "is_tied"), [("Q4_1", True), ("Q8_0", False)])
def test_a_kept_model_in_codes_is_not_read_from_its_file(folder, tmp_path, monkeypatch, kind, is_tied):
    monkeypatch.setattr(model_files, "HF_HOME", str(tmp_path / "hf"))
    path = save_coded(tmp_path, kind, tie_word_embeddings=is_tied)
    first = load_checked(path, "cpu")
    monkeypatch.setattr(models, "check_model", None)
    second = load_checked(path, "cpu")
    assert second.num_coded_layers == first.num_coded_layers > 0
    assert torch.equal(logits(second, 9), logits(first, 9))
    assert facts(second) == facts(first)


@pytest.mark.parametrize("kind", ["GPTQ with zero points", "AWQ", "W4A16", "W8A16", "GPTQ in act order"])
def test_a_kept_model_of_a_packed_checkpoint_computes_the_same_bits(folder, tmp_path, kind):
    network = build(llama_config(hidden_size=256, intermediate_size=1024), 1)
    path = save_packed(network, tmp_path / "packed", KINDS[kind], eos_token_id=7)
    first, second = (load_checked(path, "cpu", "float32") for _ in range(2))
    plain = LanguageModel.load(save(network, tmp_path / "plain", eos_token_id=7), "cpu", "float32")
    check_model(plain, "the same weights, dequantized")
    assert (first.is_kept, second.is_kept, first.num_coded_layers == 0) == (False, True, kind in NOT_IN_CODES)
    assert torch.equal(logits(first, 9), logits(plain, 9))
    assert torch.equal(logits(second, 9), logits(plain, 9))
    assert facts(second) == facts(first)
    assert files(folder)[0].stat().st_size < second.num_weight_bytes + (3 << 20), "no room for float32 is kept"


def test_engines_over_kept_models_write_the_same_texts(tmp_path):
    pair = saved(tmp_path / "target"), saved(tmp_path / "draft", seed=2)
    options = EngineOptions(num_slots=3, max_model_len=64, num_speculative_tokens=3)
    texts = []
    for _ in range(2):
        engine = Engine.load(*pair, options, device="cpu", dtype="float32")
        for params in (SamplingParams(max_tokens=24, temperature=0), SamplingParams(max_tokens=24)):
            texts.append([row.output_token_ids for row in engine.generate(random_prompts([4, 9, 6, 12]), params)])
    assert texts[:2] == texts[2:]
    assert engine.target.is_kept


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("whole name", "it is damaged"),
        ("name, with its own sum", "it is of other weights"),
        ("description, with its own sum", "its logits are off by"),
    ],
)
def test_a_cache_of_another_models_weights_is_not_taken(folder, tmp_path, caplog, what, why):
    """`what` another file has taken from the right one."""
    path, other = (saved(tmp_path / str(seed), seed) for seed in (1, 2))
    expected = logits(load_checked(path, "cpu"))
    (own,) = files(folder)
    load_checked(other, "cpu")
    (foreign,) = set(files(folder)) - {own}
    if what == "whole name":
        shutil.copyfile(foreign, own)
    else:
        contents = [torch.load(each, weights_only=True) for each in (own, foreign)]
        made_up = contents[1] if "name" in what else {**contents[0], "layers": contents[1]["layers"]}
        own.unlink()
        own = file.write(folder, own.stem.partition("-")[0], made_up)
    with caplog.at_level(logging.WARNING):
        model = load_checked(path, "cpu")
    assert f"{own} is not used" in caplog.text
    assert why in caplog.text
    assert not model.is_kept
    assert torch.equal(logits(model), expected)
    assert load_checked(path, "cpu").is_kept


@pytest.mark.parametrize("how", ["truncate", "flip", "empty"])
def test_a_damaged_file_is_made_anew(folder, tmp_path, caplog, how):
    path = saved(tmp_path / "model")
    expected = logits(load_checked(path, "cpu"))
    (own,) = files(folder)
    content = own.read_bytes()
    for seed in range(4):
        damage(own, how, random.Random(seed))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            model = load_checked(path, "cpu")
        assert "made anew" in caplog.text
        assert torch.equal(logits(model), expected)
        assert load_checked(path, "cpu").is_kept
        own.write_bytes(content)


@pytest.mark.parametrize("seed", range(12))
def test_no_bit_of_a_file_changes_what_is_computed(folder, tmp_path, seed):
    path = saved(tmp_path / "model")
    expected = logits(load_checked(path, "cpu"))
    damage(files(folder)[0], "flip", random.Random(seed))
    assert torch.equal(logits(load_checked(path, "cpu")), expected)


def test_weights_that_take_the_place_of_others_are_read(folder, tmp_path):
    path, other = (saved(tmp_path / str(seed), seed) for seed in (1, 2))
    first = logits(load_checked(path, "cpu"))
    shutil.copyfile(Path(other) / "model.safetensors", Path(path) / "model.safetensors")
    model = load_checked(path, "cpu")
    assert not model.is_kept
    assert not torch.equal(logits(model), first)
    assert torch.equal(logits(model), logits(load_checked(other, "cpu")))


def test_it_can_be_switched_off(folder, tmp_path, monkeypatch):
    path = saved(tmp_path / "model")
    monkeypatch.setenv("DRAY_KEEP_WEIGHTS", "off")
    assert not load_checked(path, "cpu").is_kept
    assert not folder.exists()


def test_weights_that_are_replaced_in_one_engine_stay_as_they_are_in_others_and_on_the_disk(folder, tmp_path):
    path, other = (saved(tmp_path / str(seed), seed) for seed in (1, 2))
    first, second = (load_checked(path, "cpu") for _ in range(2))
    (own,) = files(folder)
    before, content = logits(first), own.read_bytes()
    second.weights.put(second.weights.check(LanguageModel.load(other, "cpu").network.state_dict()))
    assert not any(layer.is_lent for layer in packed_layers(second.network))
    assert torch.equal(logits(second), logits(load_checked(other, "cpu")))
    assert torch.equal(logits(first), before)
    assert own.read_bytes() == content


def test_engines_of_a_machine_have_one_copy_in_memory(folder, tmp_path):
    path = saved(tmp_path / "model", config=llama_config(hidden_size=256, intermediate_size=1024))
    both = [load_checked(path, "cpu") for _ in range(2)]
    assert [logits(model).shape for model in both]
    (own,) = files(folder)
    maps = Path("/proc/self/smaps").read_text().split(str(own))[1:]
    rss, pss = (sum(int(each.split(f"\n{name}:")[1].split()[0]) for each in maps) for name in ("Rss", "Pss"))
    assert len(maps) >= 2
    assert rss > 1.8 * own.stat().st_size / 1024
    assert pss < 0.6 * rss


def test_engines_that_start_at_once_write_one_file(folder, tmp_path):
    path = saved(tmp_path / "model")
    key = models._key(path, "cpu", "float32")
    started = [LanguageModel.load(path, "cpu", "float32") for _ in range(3)]
    for model in started:
        check_model(model, path)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(models._keep, started, 3 * [key]))
    assert len(files(folder)) == 1
    assert len(list(folder.iterdir())) == 2, "and the lock"
    assert all(layer.is_lent for model in started for layer in packed_layers(model.network))
    assert torch.equal(logits(started[0]), logits(started[2]))
