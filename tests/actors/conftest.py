"""What tests of targets in stages share: a pair of tiny models, and one thread beside the stages."""

from collections.abc import Iterator

import pytest
import torch

from tests.actors.sharded import SAMPLED, Pair, make_engine, make_sequences, texts
from tests.decoding.tiny import build, llama_config, noised, save


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Paths of a target of three layers and of a draft that guesses well."""
    folder = tmp_path_factory.mktemp("pair")
    target = build(llama_config(num_hidden_layers=3, max_position_embeddings=128), seed=1)
    return save(target, folder / "target"), save(noised(target, 0.1), folder / "draft")


@pytest.fixture(scope="module")
def sampled(pair: Pair) -> list[list[int]]:
    """What the target writes for the rows of `make_sequences(SAMPLED)` in one process."""
    return texts(make_engine(pair, None), make_sequences(SAMPLED))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny matrices: threads only cost, and other processes compute on the same cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
