"""Models on disk, built once per session, so that the tests run the real load path.

Where TRITON_INTERPRET=1 is set before Python starts, the kernels of a GPU run here in Triton's interpreter: the models
are smaller then.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from decoding.gpu.available import is_interpreted
from decoding.heads import attach
from decoding.heads.format.folder import Head, save_head
from decoding.heads.format.head_config import HeadConfig
from decoding.network.language_model import LanguageModel
from tests import interpreter
from tests.decoding.grammar.tiny_grammars import with_end
from tests.decoding.heads.tiny_heads import block_config, head_config, head_for, random_network
from tests.decoding.tiny import build, llama_config, noised, save

interpreter.install()
_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1} if is_interpreted() else {}


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Tiny matrices: threads only cost."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> SimpleNamespace:
    """A target and three drafts for it, as saved models. The perfect draft is the target itself."""
    root = tmp_path_factory.mktemp("models")
    target = build(llama_config(**_HEADS), seed=1)
    unrelated = build(
        llama_config(**{"hidden_size": 16, "num_hidden_layers": 1, "num_key_value_heads": 4, **_HEADS}), seed=2
    )
    path = save(target, root / "target")
    return SimpleNamespace(
        target=path,
        good_draft=save(noised(target, 0.1), root / "good_draft"),
        unrelated_draft=save(unrelated, root / "unrelated_draft"),
        perfect_draft=path,
        head=_head_for(path, root / "head", head_config),
        block_head=_head_for(path, root / "block_head", partial(block_config, kind="dspark")),
    )


def _head_for(target: str, folder: Path, make: Callable[..., HeadConfig]) -> str:
    """A random head, which reads the target's layers and drafts badly."""
    config = head_for(LanguageModel.load(target, "cpu"), make)
    tensors = {name: weight.detach() for name, weight in random_network(config).named_parameters()}
    save_head(Head(config, tensors), str(folder), "speculators")
    return str(folder)


@pytest.fixture
def _any_head(monkeypatch):
    """Heads are taken however little they agree with their target."""
    monkeypatch.setattr(attach, "LEAST_AGREEMENT", 0.0)


def _load_all(folders: SimpleNamespace) -> dict[str, LanguageModel]:
    return {name: LanguageModel.load(path, "cpu") for name, path in vars(folders).items() if not name.endswith("head")}


@pytest.fixture(scope="session")
def models(folders) -> SimpleNamespace:
    """The same, loaded, each with weights of its own."""
    return SimpleNamespace(**_load_all(folders))


@pytest.fixture(scope="session")
def ended(models) -> SimpleNamespace:
    """The same, with a target that has an end token."""
    return SimpleNamespace(**{**vars(models), "target": with_end(models.target)})


@pytest.fixture(scope="session")
def fresh(folders) -> dict[str, LanguageModel]:
    """The same models again, with caches of their own."""
    return _load_all(folders)


@pytest.fixture
def gpu(monkeypatch):
    """A stand-in for a GPU, which all operations of the test run on."""
    from tests.decoding.stand_in_gpu import StandInGpu

    with StandInGpu().install(monkeypatch) as gpu:
        yield gpu
