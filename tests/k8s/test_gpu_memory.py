"""The models that the overlays name fit, with their slots, into the GPUs that the overlays ask for."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from transformers import PretrainedConfig, Qwen3Config

from decoding.footprint import GIB, Footprint, footprint_of
from tests.k8s.manifests import of_kind, render

_COMMON: dict[str, Any] = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
MODELS: dict[str, PretrainedConfig] = {  # as their config.json on the hub says
    "Qwen/Qwen3-8B": Qwen3Config(
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        tie_word_embeddings=False,
        **_COMMON,
    ),
    "Qwen/Qwen3-0.6B": Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        tie_word_embeddings=True,
        **_COMMON,
    ),
}
LARGE, SMALL = 79.6 * GIB, 22.0 * GIB  # what an H100 with 80 GB and an L4 leave to programs
SHARE = 0.9  # the rest is for what a forward needs for a moment, and for CUDA itself


def config_of(folder: str) -> dict[str, Any]:
    objects = render(folder)
    if folder == "overlays/service":
        serve = yaml.safe_load(of_kind(objects, "RayService")["spec"]["serveConfigV2"])
        return dict(serve["applications"][0]["args"])
    return dict(yaml.safe_load(of_kind(objects, "ConfigMap")["data"]["run.yaml"]))


def footprints(folder: str) -> tuple[Footprint, Footprint]:
    """The target's and the draft's."""
    config = config_of(folder)
    models, engine = config["models"], config["engine"]
    target, draft = (
        footprint_of(MODELS[models[name]], models["dtype"], engine["num_slots"], engine["max_model_len"])
        for name in ("target", "draft")
    )
    return target, draft


@pytest.mark.parametrize("folder", ["overlays/job", "overlays/service"])
def test_target_draft_and_slots_fit_into_one_gpu(folder: str) -> None:
    assert sum(each.total for each in footprints(folder)) <= SHARE * LARGE


def test_apart_each_fits_into_its_own_gpu() -> None:
    target, draft = footprints("overlays/split")
    assert target.total <= SHARE * LARGE
    assert draft.total <= SHARE * SMALL


def test_the_figures_of_the_readme_are_these() -> None:
    target, draft = footprints("overlays/job")
    assert target.weights / GIB == pytest.approx(15.26, abs=0.01)
    assert draft.weights / GIB == pytest.approx(1.11, abs=0.01)
    assert (target.cache_per_token, draft.cache_per_token) == (147_456, 114_688)


def test_twice_the_slots_would_not_fit() -> None:
    target, draft = footprints("overlays/job")
    assert target.weights + draft.weights + 2 * (target.cache + draft.cache) > LARGE
