"""Tests with vLLM itself: make test-vllm. Where it is not installed, none of them is collected."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from actors.engines import backend_of
from actors.engines.loading import load_codec
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings
from decoding import Engine, EngineOptions
from pipeline.text.codec import TextCodec

collect_ignore_glob = ["test_*.py"] if find_spec("vllm") is None else []

PAIR = Path(__file__).parents[2] / "examples" / "tiny_pair"
CONTEXT = 160


def vllm_settings(has_draft: bool, **options: Any) -> GeneratorSettings:
    """Return the settings of the bundled pair with vLLM, which compiles nothing here, so that it loads faster."""
    models = ModelSettings(
        target=str(PAIR / "target"), draft=str(PAIR / "draft") if has_draft else None, device="cpu", dtype="float32"
    )
    values = {"num_slots": 3, "max_model_len": CONTEXT, "num_speculative_tokens": 4, "vllm": {"enforce_eager": True}}
    return GeneratorSettings(models=models, engine=EngineSettings(**{**values, **options}, backend="vllm"))


@pytest.fixture(scope="session")
def codec() -> TextCodec:
    """The bundled pair's tokenizer."""
    return load_codec(vllm_settings(has_draft=False))


@pytest.fixture(scope="session", params=[True, False], ids=["with a draft model", "without drafts"])
def engine(request: pytest.FixtureRequest) -> Any:
    """vLLM's engine over the bundled pair."""
    return backend_of(vllm_settings(has_draft=request.param)).load().engine


@pytest.fixture(scope="session")
def plain() -> Engine:
    """Dray's engine with the same target, without drafts."""
    options = EngineOptions(num_slots=8, drafter="none", max_model_len=CONTEXT)
    return Engine.load(str(PAIR / "target"), None, options, device="cpu", dtype="float32")
