"""The recorder sees every forward that ran, tells shapes apart, and leaves nothing behind."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks.decoder.configurations import select
from benchmarks.decoder.corpus import Corpus
from benchmarks.decoder.counts.recorder import ForwardRecorder, shape_of
from benchmarks.decoder.runners import EngineRunner
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
    monkeypatch.setattr("benchmarks.decoder.counts.recorder.seconds_of", lambda work, device, times: 1.0)
    assert run(models, drafter="none").replay().target == 18.0


def test_each_shape_runs_a_few_times_before_it_is_timed_on_cuda(models, monkeypatch):
    recorder, events = run(models, drafter="none"), []
    for number, recorded in enumerate(recorder.shapes.values()):
        monkeypatch.setattr(recorded, "again", lambda _, number=number: events.append(number))
    monkeypatch.setattr(recorder, "models", {"target": SimpleNamespace(device=torch.device("cuda"))})
    monkeypatch.setattr(
        "benchmarks.decoder.counts.recorder.seconds_of", lambda work, device, times: events.append("timed") or 1.0
    )
    recorder.replay()
    assert events == [event for number in range(len(recorder.shapes)) for event in (*[number] * 3, "timed")]


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


def test_the_engines_own_time_is_measured_once_for_each_kind_of_drafter(models, monkeypatch):
    measured = []
    monkeypatch.setattr(models, "_overheads", {})
    monkeypatch.setattr(
        "benchmarks.decoder.shared_models.with_overhead", lambda costs, *_: measured.append(costs) or costs
    )
    for drafter in ("model", "model", "hybrid", "model", "ngram", "suffix"):
        models.engine(EngineOptions(num_slots=2, max_model_len=32, drafter=drafter))
    models.engine(EngineOptions(num_slots=3, max_model_len=32, drafter="model"))
    assert len(measured) == 4  # model, hybrid, one without a draft model, and the one with 3 slots


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


def test_the_target_is_loaded_and_run_with_the_products_that_are_asked_for(pair):
    models = SharedModels(str(pair / "target"), str(pair / "draft"), "cpu", "float32", exact="auto")
    assert (models.target.exact, models.draft.exact) == ("auto", "off")
    runner = EngineRunner(
        select(["plain"])[0], 2, Corpus("random", ((1, 2),), 1, SamplingParams(), 0), 1, models, False
    )
    assert runner.engine().options.exact == "auto"
    runner.exact = "off"
    assert runner.engine().options.exact == "off"


def test_twins_have_caches_of_their_own(models):
    models.target.allocate(2, 32)
    twin = models.target.share()
    twin.allocate(2, 32)
    assert twin.cache is not models.target.cache


@pytest.mark.parametrize(("is_crowded", "num_runs"), [(True, 2), (False, 1)])
def test_where_graphs_are_lost_with_a_cache_every_repeat_generates_once_untimed(
    models, is_crowded, num_runs, monkeypatch
):
    (plain,) = select(["plain"])
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    runner = EngineRunner(plain, 2, Corpus("random", ((1, 2), (3,)), 1, params, 0), 2, models, False)
    runner.warm_up()
    for model in (models.target, models.draft):
        monkeypatch.setattr(model, "holds_one_cache", is_crowded)
    events = []
    monkeypatch.setattr(
        "benchmarks.decoder.runners.generate", lambda engine, rows: events.append("run") or finish(rows)
    )
    monkeypatch.setattr(
        "benchmarks.decoder.runners.seconds_of", lambda work, device: (events.append("timed"), work())[0]
    )
    runner.repeat()
    assert events == [*["run"] * (num_runs - 1), "timed", "run"]


def finish(rows: list) -> None:
    """End rows of 3 output tokens."""
    for row in rows:
        row.commit([7, 7, 7], num_draft_tokens=2, eos_token_ids=frozenset(), logprobs=[])
