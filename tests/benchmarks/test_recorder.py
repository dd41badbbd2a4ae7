"""The recorder sees every forward that ran, tells shapes apart, and leaves nothing behind."""

import pytest
import torch

from benchmarks.decoder.counts.recorder import ForwardRecorder, shape_of
from benchmarks.decoder.shared_models import SharedModels
from decoding import EngineOptions, SamplingParams


@pytest.fixture(scope="module")
def models(pair) -> SharedModels:
    return SharedModels(str(pair / "target"), str(pair / "draft"), "cpu", "float32")


def run(models: SharedModels, **options: object) -> ForwardRecorder:
    """Three rows of 9 tokens through two slots."""
    engine = models.engine(EngineOptions(num_slots=2, max_model_len=32, **options))
    recorder = ForwardRecorder({"target": models.target, "draft": models.draft})
    with recorder.recording():
        engine.generate([[1, 2, 3], [4, 5], [6]], SamplingParams(temperature=0, max_tokens=9))
    return recorder


def test_plain_decoding_is_one_target_forward_a_token(models):
    recorder = run(models, drafter="none")
    assert recorder.count("target") == 18  # rows 1 and 2 together, then row 3
    assert recorder.count("draft") == 0
    assert recorder.count("prefill") == 1  # the row of one token has nothing to prefill


def test_a_fixed_length_is_that_number_of_draft_forwards_per_round(models):
    recorder = run(models, drafter="model", num_speculative_tokens=2, draft_length="fixed")
    assert recorder.count("target") < 18
    assert recorder.count("target") <= recorder.count("draft") <= 2 * recorder.count("target")


def test_a_replay_counts_a_shape_as_often_as_it_ran(models, monkeypatch):
    monkeypatch.setattr("benchmarks.decoder.counts.recorder.seconds_of", lambda work, device, times: 1.0)
    assert run(models, drafter="none").replay().target == 18.0


@pytest.mark.parametrize(
    ("changed", "is_the_same"),
    [
        ({"starts": [2, 5]}, True),  # other positions in the same bucket
        ({"starts": [2, 70]}, False),  # more positions to read
        ({"token_ids_BT": torch.zeros(2, 4, dtype=torch.int64)}, False),
        ({"lengths": [2, 1]}, False),  # ragged
        ({"lengths": [3, 3]}, False),
        ({"num_splits": 2}, False),  # an argument that the recorder does not know
    ],
)
def test_forwards_are_one_shape_where_they_must_take_the_same_time(changed, is_the_same):
    one = {"starts": [1, 9], "token_ids_BT": torch.ones(2, 3, dtype=torch.int64), "lengths": None}
    assert (shape_of(one) == shape_of(one | changed)) == is_the_same


def test_ragged_forwards_of_as_many_tokens_are_one_shape():
    tokens_BT = torch.zeros(3, 4, dtype=torch.int64)
    lengths = ([4, 1, 2], [2, 4, 1], [4, 1, 1])
    one, other, shorter = ({"token_ids_BT": tokens_BT, "starts": [1, 1, 1], "lengths": x} for x in lengths)
    assert shape_of(one) == shape_of(other) != shape_of(shorter)


@pytest.fixture
def crowded(models, monkeypatch) -> SharedModels:
    """Models whose memory holds one cache at a time, as a GPU's does."""
    for model in (models.target, models.draft):
        model.forget()
        monkeypatch.setattr(model, "holds_one_cache", True)
    return models


def test_plain_decoding_finds_no_cache_of_another_batchs_draft(crowded):
    crowded.engine(EngineOptions(num_slots=3, max_model_len=32, drafter="model"))
    assert crowded.draft.cache is not None
    crowded.engine(EngineOptions(num_slots=3, max_model_len=32, drafter="none"))
    assert crowded.draft.cache is not None  # of this batch: its graphs are still of use
    crowded.engine(EngineOptions(num_slots=2, max_model_len=32, drafter="none"))
    assert crowded.draft.cache is None
    assert crowded.target.cache.num_slots == 2
