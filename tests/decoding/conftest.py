"""Models on disk, built once per session, so that the tests run the real load path."""

from dataclasses import dataclass

import pytest
import torch

from decoding.network.language_model import LanguageModel
from tests.decoding.tiny import build, llama_config, noised, save


@dataclass(frozen=True)
class Folders:
    """A target and three drafts for it, as saved models. The perfect draft is the target itself."""

    target: str
    good_draft: str
    unrelated_draft: str


@dataclass(frozen=True)
class Models:
    """The same, loaded. The perfect draft is a second copy of the target."""

    target: LanguageModel
    good_draft: LanguageModel
    unrelated_draft: LanguageModel
    perfect_draft: LanguageModel


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Tiny matrices: threads only cost."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> Folders:
    root = tmp_path_factory.mktemp("models")
    target = build(llama_config(), seed=1)
    unrelated = build(llama_config(hidden_size=16, num_hidden_layers=1, num_key_value_heads=4), seed=2)
    return Folders(
        target=save(target, root / "target"),
        good_draft=save(noised(target, 0.1), root / "good_draft"),
        unrelated_draft=save(unrelated, root / "unrelated_draft"),
    )


@pytest.fixture(scope="session")
def fresh(folders) -> dict[str, LanguageModel]:
    """The same models again, with caches of their own."""
    paths = {"target": folders.target, "good_draft": folders.good_draft, "perfect_draft": folders.target}
    return {name: LanguageModel.load(path, "cpu") for name, path in paths.items()}


@pytest.fixture(scope="session")
def models(folders) -> Models:
    return Models(
        target=LanguageModel.load(folders.target, "cpu"),
        good_draft=LanguageModel.load(folders.good_draft, "cpu"),
        unrelated_draft=LanguageModel.load(folders.unrelated_draft, "cpu"),
        perfect_draft=LanguageModel.load(folders.target, "cpu"),
    )
