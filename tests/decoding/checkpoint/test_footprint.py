"""The memory that is foretold is the memory that is taken."""

from pathlib import Path

import pytest
from transformers import DeepseekV3Config, MiMoV2FlashConfig

from decoding import Engine, EngineOptions
from decoding.checkpoint.loading import cache_of, footprint_of
from decoding.checkpoint.supported import load_config
from decoding.heads import attach
from decoding.heads.mtp.files import own_head
from decoding.network.language_model import LanguageModel
from tests.decoding.families import FAMILIES, family_network
from tests.decoding.heads.mtp.tiny_targets import FAMILIES as OWN_HEADS
from tests.decoding.heads.mtp.tiny_targets import save_target
from tests.decoding.tiny import loaded, numbered, run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("which", [0, 1])
def test_weights_and_cache_take_as_many_bytes_as_foretold(text_pair: tuple[str, str], which: int, dtype: str) -> None:
    folder = text_pair[which]
    foretold = footprint_of(load_config(folder), dtype, num_slots=3, max_model_len=40)
    model = LanguageModel.load(folder, "cpu", dtype)  # type: ignore[arg-type]
    assert model.num_weight_bytes == foretold.weights
    model.allocate(3, 40)
    model.prefill([0], [[1, 2, 3]])
    assert model.cache is not None
    assert model.cache.num_bytes == foretold.cache


def test_a_footprint_says_what_it_is_made_of(text_pair: tuple[str, str]) -> None:
    assert "for 3 slots of 40 tokens" in str(footprint_of(load_config(text_pair[0]), "float32", 3, 40))


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_and_values_of_a_family_take_as_many_bytes_as_foretold(family: str, tmp_path: Path) -> None:
    model = loaded(family_network(family), tmp_path)
    model.allocate(3, 40)
    model.prefill([0], [[1, 2, 3]])
    assert model.cache is not None
    foretold = footprint_of(model.network.config, "float32", num_slots=3, max_model_len=40)
    assert model.cache.num_bytes == pytest.approx(foretold.cache, rel=0.05)


@pytest.mark.parametrize("family", OWN_HEADS)
def test_a_target_and_the_head_in_its_files_take_as_many_bytes_a_row_as_foretold(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach, "LEAST_AGREEMENT", 0.0)  # a random head agrees on less
    path, _ = save_target(family, tmp_path)
    options = EngineOptions(num_slots=3, max_model_len=40, num_speculative_tokens=4, draft_length="fixed")
    engine = Engine.load(path, "mtp", options, device="cpu", dtype="float32")
    run(engine, numbered([[1, 2, 3], [4, 5]], max_tokens=12))
    _, per_token = own_head(path).numbers()
    (lane,) = engine.lanes
    assert lane.drafter.head.cache.num_bytes == pytest.approx(4 * per_token * 3 * 41, rel=0.05)
    assert lane.target.cache.num_bytes == pytest.approx(_cache(path), rel=0.05)


def _cache(path: str) -> int:
    return footprint_of(load_config(path), "float32", 3, 40, num_draft_tokens=4).cache


def test_latents_are_counted_and_not_the_keys_of_all_heads_that_are_computed_from_them() -> None:
    assert cache_of(DeepseekV3Config(), "bfloat16", 1, 0) == 61 * (512 + 64) * 2
    sizes = {"full_attention": 4 * (192 + 128), "sliding_attention": 8 * (192 + 128)}
    config = MiMoV2FlashConfig()
    assert cache_of(config, "bfloat16", 1, 0) == 2 * sum(sizes[kind] for kind in config.layer_types)
