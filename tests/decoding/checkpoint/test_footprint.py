"""The memory that is foretold is the memory that is taken."""

import pytest

from decoding.checkpoint.loading import footprint_of
from decoding.checkpoint.supported import load_config
from decoding.network.language_model import LanguageModel


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
