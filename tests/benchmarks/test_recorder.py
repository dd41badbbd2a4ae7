"""The recorder sees every forward that ran, tells shapes apart, and leaves nothing behind."""

import pytest
import torch

from benchmarks.decoder.recorder import ForwardRecorder, shape_of
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


def test_replaying_takes_time_of_every_phase_and_only_of_those_that_ran(models):
    seconds = run(models, drafter="none").replay()
    assert seconds.target > 0
    assert seconds.prefill > 0
    assert seconds.draft == 0


def test_a_replay_counts_a_shape_as_often_as_it_ran(models, monkeypatch):
    monkeypatch.setattr("benchmarks.decoder.recorder.seconds_of", lambda work, device, times: 1.0)
    assert run(models, drafter="none").replay().target == 18.0


def test_models_are_unwrapped_after_recording(models):
    run(models, drafter="none")
    assert not {"forward", "plain_logits"} & (vars(models.target) | vars(models.draft)).keys()


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


def test_engines_share_models_but_not_what_they_learned(models):
    options = EngineOptions(num_slots=2, max_model_len=32, drafter="model")
    first, cache = models.engine(options), models.target.cache
    second = models.engine(options)
    assert first.target is second.target is models.target
    assert first.lanes[0].schedule is not second.lanes[0].schedule
    assert first.lanes[0].drafter is not second.lanes[0].drafter
    assert models.target.cache is cache  # memory that is warm
    models.engine(EngineOptions(num_slots=3, max_model_len=32))
    assert models.target.cache is not cache
    models.engine(options)
    assert models.target.cache is cache
