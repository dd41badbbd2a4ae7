"""The memory of states is foretold from the configuration, and is what a run takes."""

import pytest

from decoding.checkpoint.loading import footprint_of
from decoding.network.language_model import LanguageModel
from tests.decoding.families import STATES, family_config, family_network
from tests.decoding.tiny import loaded


@pytest.mark.parametrize("name", STATES)
def test_keys_and_states_take_as_many_bytes_as_foretold(name, tmp_path):
    foretold = footprint_of(family_config(name, STATES), "float32", num_slots=3, max_model_len=40)
    model: LanguageModel = loaded(family_network(name, STATES), tmp_path)
    model.allocate(3, 40)
    model.prefill([0], [[1, 2, 3]])
    assert model.cache is not None
    assert foretold.states_per_slot > 0
    assert model.cache.num_bytes == pytest.approx(foretold.cache, rel=0.05)
