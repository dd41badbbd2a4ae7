"""Models and engines of the check-up's tests."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import pytest
from transformers import PretrainedConfig, Qwen3Config

from decoding import Engine, EngineOptions
from decoding.engine.load import Parts
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from tests.decoding.tiny import build, llama_config, noised, outputs, run, save
from tests.gpu import rows


@dataclass(frozen=True)
class Case:
    """A family, which decides the head size, and how its products are computed."""

    family: Literal["llama", "qwen3"]  # heads of size 64; of size 128, with norms of queries and keys
    dtype: Literal["float32", "bfloat16"]
    exact: Literal["auto", "on"]

    def __str__(self) -> str:
        return f"{self.family}-{self.dtype}-{self.exact}"


@dataclass(frozen=True)
class Models:
    """A target and a good draft, loaded and checked, and the folders they were loaded from."""

    case: Case
    device: str
    target: LanguageModel
    draft: LanguageModel
    target_path: str
    draft_path: str


class MakeEngine(Protocol):
    """The fixture `make_engine`."""

    def __call__(self, drafter: str = "none", *, is_recorded: bool = True, **options: object) -> Engine: ...


def config(family: str) -> PretrainedConfig:
    """Two layers, and logits far apart."""
    sizes = {"hidden_size": 256, "intermediate_size": 384} if rows.HAS_GPU else {"hidden_size": 32}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2} if rows.HAS_GPU else {"num_attention_heads": 2}
    made = llama_config(
        rows.VOCAB_SIZE,
        **{"intermediate_size": 48, "num_key_value_heads": 1, **sizes, **heads},
        head_dim=64 if family == "llama" else 128,
        max_position_embeddings=rows.CONTEXT,
    )
    return made if family == "llama" else Qwen3Config(**(made.to_dict() | {"model_type": "qwen3"}))


def load_models(case: Case, device: str, folder: Path) -> Models:
    """Save a random target and a draft that often agrees with it; load and check both as an engine would."""
    network = build(config(case.family), seed=1)
    paths = save(network, folder / "target"), save(noised(network, 0.1), folder / "draft")
    target = LanguageModel.load(paths[0], device, case.dtype, case.exact)
    draft = LanguageModel.load(paths[1], device, case.dtype)
    for model, path in zip((target, draft), paths, strict=True):
        check_model(model, path)
    return Models(case, device, target, draft, *paths)


def engine_over(models: Models, drafter: str = "none", **options: object) -> Engine:
    """An engine over models that are loaded already; only one engine at a time may use them."""
    settings = EngineOptions(
        drafter=drafter, draft_length="fixed", max_model_len=rows.CONTEXT, **{"num_slots": 3, **options}
    )
    draft = models.draft if drafter in ("model", "hybrid") else None
    return Engine.over(Parts(models.target, draft, drafter, rows.CONTEXT), settings)


def plain_texts(models: Models) -> list[list[int]]:
    """The text of each row alone, one token a round, with nothing recorded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models.target, "graphs", None)
        patch.setenv("DRAY_GRAPHS", "off")
        engine = engine_over(models, num_slots=1)
        texts = [outputs(run(engine, [sequence]))[0] for sequence in rows.sequences()]
    assert len({tuple(text) for text in texts}) == len(texts), "the rows differ"
    return texts
