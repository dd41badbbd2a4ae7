"""The bundled pair, loaded once for the tests of this folder."""

from pathlib import Path

import pytest

import dray

PAIR = Path(__file__).parents[2] / "examples/tiny_pair"
TARGET, DRAFT = str(PAIR / "target"), str(PAIR / "draft")


@pytest.fixture(scope="session")
def model() -> dray.Model:
    """Return the pair as a model."""
    return dray.load_model(TARGET, DRAFT, num_slots=4)
