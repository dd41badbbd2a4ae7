"""What a check at load leaves of a model on a GPU: our layers, its recordings, and the promise that was measured."""

import pytest

pytestmark = pytest.mark.gpu


def test_a_checked_model_keeps_our_layers_and_its_recordings(models):
    for model in (models.target, models.draft):
        assert model.fused is not None
        assert model.fused.is_on_gpu
        assert (model.graphs is not None) == (models.device == "cuda")


def test_exact_products_are_measured_to_depend_on_no_other_row(models):
    assert models.target.is_batch_invariant == (models.case.exact == "on")


@pytest.mark.parametrize("drafter", ["none", "model", "hybrid", "suffix"])
def test_rounds_overlap_where_the_host_decides_nothing(models, make_engine, drafter):
    """In float32 it decides close calls, and lookups need to know the last tokens."""
    (lane,) = make_engine(drafter).lanes
    expected = models.case.dtype == "bfloat16" and drafter in ("none", "model")
    assert (lane.ahead is not None) == expected
