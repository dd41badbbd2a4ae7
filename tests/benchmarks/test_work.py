"""The bytes that a run must read and its time at the roofline, against forwards that are added up by hand."""

import pytest
import torch

from benchmarks.decoder.counts import work
from benchmarks.decoder.counts.recorder import ForwardRecorder, size_of
from benchmarks.decoder.counts.work import size_of_model, work_of
from benchmarks.decoder.shared_models import SharedModels
from benchmarks.roofline.gpus import Gpu
from benchmarks.roofline.ideal import ROUND_SECONDS, STEP_SECONDS, forward_seconds
from benchmarks.roofline.model_size import Forward
from decoding import EngineOptions, SamplingParams

SLOW = Gpu("slow", "Abacus", bandwidth=1e6, flops=1e12, memory=1e9)


@pytest.fixture(scope="module")
def models(pair) -> SharedModels:
    return SharedModels(str(pair / "target"), str(pair / "draft"), "cpu", "float32")


def recorded(models: SharedModels, drafted: int) -> ForwardRecorder:
    """A prompt of 5 tokens and 4 output tokens."""
    lengths = {"num_speculative_tokens": drafted or 1, "draft_length": "fixed"}
    drafter = "model" if drafted else "none"
    engine = models.engine(EngineOptions(num_slots=1, max_model_len=32, drafter=drafter, **lengths))
    recorder = ForwardRecorder({"target": models.target, "draft": models.draft})
    with recorder.recording():
        engine.generate([[1, 2, 3, 4, 5]], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    return recorder


def test_plain_decoding_reads_the_weights_in_each_step_and_the_keys_before_it(models):
    size, found = size_of_model(models.target), work_of(recorded(models, 0))
    assert size.bytes_per_value == 4
    head = size.head_weights * 4
    step = size.layer_weights * 4 + head
    assert found.prefill_bytes == step - head + 4 * size.cache_bytes  # the fifth token is the first step's
    assert found.round_bytes == 4 * step + (5 + 6 + 7 + 8) * size.cache_bytes
    assert found.roofline_seconds is None  # of a CPU


def test_at_the_roofline_a_run_takes_the_time_of_its_forwards_and_what_a_round_takes_beside_them(models, monkeypatch):
    monkeypatch.setattr(work, "_limits", lambda model: SLOW)
    size = size_of_model(models.target)
    prefill = forward_seconds(SLOW, size, Forward(4, 0, 4, 10))
    rounds = sum(ROUND_SECONDS + forward_seconds(SLOW, size, Forward.of_round(1, 1, at)) for at in (5, 6, 7, 8))
    found = work_of(recorded(models, 0))
    assert found.roofline_seconds == pytest.approx(prefill + rounds)
    assert found.roofline_round_seconds == pytest.approx(rounds)
    recorder = recorded(models, 2)
    sizes = {"target": size, "draft": size_of_model(models.draft)}
    beside = ROUND_SECONDS * recorder.count("target") + STEP_SECONDS * recorder.count("draft")
    forwards = sum(
        count * forward_seconds(SLOW, sizes[role], forward) for (_, role, forward), count in recorder.forwards.items()
    )
    assert recorder.count("draft") > 0
    assert work_of(recorder).roofline_seconds == pytest.approx(beside + forwards)


def test_ragged_rows_and_prompts_are_counted_token_by_token():
    tokens_BT = torch.zeros(2, 3, dtype=torch.int64)
    every = {"token_ids_BT": tokens_BT, "starts": [10, 20], "logits_at_BJ": tokens_BT}
    assert size_of(every) == Forward(6, 6, 13 + 23, 11 + 12 + 13 + 21 + 22 + 23)
    assert size_of(every | {"lengths": [3, 1]}) == Forward(4, 4, 13 + 21, 11 + 12 + 13 + 21)
    assert size_of(every | {"logits_at_BJ": tokens_BT[:, :0]}).num_logits == 0
    assert size_of({"token_ids": [1, 2, 3]}) == Forward(3, 1, 3, 1 + 2 + 3)
