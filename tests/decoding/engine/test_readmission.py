"""A row that loses its slot goes on where it was: the same tokens, the same finish, counts that add up."""

from unittest.mock import Mock

import pytest

from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.drafters.lookups.suffix import SuffixDrafter
from decoding.engine.load import Parts
from decoding.engine.scored_text import ScoredText
from decoding.engine.token_engine import TargetLostError
from decoding.network.language_model import LanguageModel
from decoding.network.target import SlotsLostError
from tests.decoding.heads.beside import assistant, own_head
from tests.decoding.tiny import assert_each_once, engine_over, numbered, outputs, random_prompts, run
from tests.worlds.lanes import Processes, lanes_over
from tests.worlds.rows import shared
from tests.worlds.text_world import TextWorld

HEAD = random_prompts([20], seed=31)[0]


@pytest.fixture(scope="module")
def world(models) -> TextWorld:
    return TextWorld(models, shared)


def test_evicted_rows_wait_in_front_of_all_others_and_keep_their_counts(models):
    engine = engine_over(models.target, num_slots=2)
    rows = numbered([HEAD] * 4, max_tokens=9, ignore_eos=True)
    engine.submit(rows)
    for _ in range(3):
        engine.step()
    assert [row.num_cached_tokens for row in rows[:2]] == [0, len(HEAD) - 1]
    engine.evict(rows[:2])
    assert engine.up_next() == set(rows[:2])
    list(engine.stream([]))
    assert [row.num_cached_tokens for row in rows[:2]] == [0, len(HEAD) - 1]
    assert [row.num_rounds for row in rows] == [9] * 4


def test_a_row_that_waits_to_copy_from_an_evicted_one_reads_for_itself(models):
    engine = engine_over(models.target, num_slots=4, max_prefill_tokens=3)
    blocker = Sequence.create([1], SamplingParams(max_tokens=60, ignore_eos=True), row=9)
    (prompt,) = random_prompts([60], seed=9)
    rows, alone = (numbered([prompt] * 3, max_tokens=5) for _ in range(2))
    engine.submit([blocker, *rows])
    engine.step()
    assert engine.num_running == 4
    engine.evict(rows[:1])
    assert len(list(engine.stream([]))) == 4
    assert outputs(rows) == outputs(run(engine_over(models.target, num_slots=1), alone))


def test_an_evicted_row_that_is_dropped_is_not_read_again(models):
    engine = engine_over(models.target, num_slots=2)
    kept, unwanted = numbered([[1, 0], [1, 1]], max_tokens=8)
    engine.submit([kept, unwanted])
    engine.step()
    engine.evict([unwanted])
    engine.drop([unwanted])
    assert engine.step() == [unwanted]
    assert len(unwanted.output_token_ids) == 1
    list(engine.stream([]))
    assert len(kept.output_token_ids) == 8


def test_a_row_that_is_being_seated_when_the_target_is_lost_is_not_forgotten(models, world):
    engine = engine_over(models.target.share(), num_slots=4, max_prefill_tokens=5)
    processes, found = Processes(engine, every=1, counted={"is_finite"}, max_losses=2), world.rows()
    run(engine, found)
    assert processes.num_losses == 2
    world.compare(found)


def test_a_row_that_is_being_seated_when_memory_runs_out_still_waits(models, world, monkeypatch):
    engine, found = engine_over(models.target, models.good_draft, "model", num_slots=2), world.rows()
    engine.submit(found)
    with monkeypatch.context() as patched:
        patched.setattr(engine.lanes[0].drafter, "begin", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            engine.step()
    assert engine.up_next() == set(found[:2])
    assert_each_once(engine.stream([]), found)
    world.compare(found)


def test_a_target_that_is_lost_over_the_same_rows_again_and_again_is_an_error_of_one_step(models, world):
    engine, _ = lanes_over(models, "none", 2)
    engine.submit(found := world.rows())
    for _ in range(2):
        engine.step()
    processes = Processes(engine, every=1, max_losses=3)
    for _ in range(2):
        assert engine.step() == []
    with pytest.raises(TargetLostError, match="3 times over rows that wrote nothing in between: planted"):
        engine.step()
    assert processes.num_losses == 3
    assert_each_once(engine.stream([]), found)
    world.compare(found)


def test_losses_between_which_texts_went_on_are_not_their_fault(models):
    texts, expected = ([ScoredText.whole(prompt) for prompt in random_prompts([40, 33], seed=7)] for _ in range(2))
    lanes_over(models)[0].score(expected)
    engine = engine_over(models.target.share(), num_slots=4, max_prefill_tokens=2)
    processes = Processes(engine, every=3, counted={"logprobs"})
    for text in texts:
        engine.score([text])
    assert processes.num_losses >= 3
    for text, other in zip(texts, expected, strict=True):
        assert text.error is None
        values = [entry.logprob for entry in other.scores[0]]
        assert [entry.logprob for entry in text.scores[0]] == pytest.approx(values, abs=1e-4)


def test_a_text_over_which_the_target_is_lost_again_and_again_fails_alone(models, monkeypatch):
    texts = [ScoredText.whole(prompt) for prompt in random_prompts([20, 30, 25], seed=7)]
    engine, _ = lanes_over(models)
    logprobs = LanguageModel.logprobs

    def lose(self, stretches):
        if any(len(stretch.token_ids) == 29 for stretch in stretches):
            raise SlotsLostError("planted")
        return logprobs(self, stretches)

    monkeypatch.setattr(LanguageModel, "logprobs", lose)
    engine.score(texts)
    assert [text.error is None for text in texts] == [True, False, True]
    assert "lost over this text, twice: planted" in texts[1].error


def test_of_scored_rows_that_run_alone_after_a_loss_one_is_up_next(models, monkeypatch):
    engine = engine_over(models.target.share(), num_slots=4)
    rows = engine.rows_of([ScoredText.whole(prompt) for prompt in random_prompts([20, 30, 25], seed=7)])
    engine.submit(rows)
    with monkeypatch.context() as patched:
        patched.setattr(LanguageModel, "logprobs", Mock(side_effect=SlotsLostError("planted")))
        engine.step()
    while engine.has_work:
        announced = engine.up_next()
        assert len(announced) <= 1
        assert set(engine.step()) == announced
    assert all(row.error is None for row in rows)


RESIZED = [
    ("hybrid", "adaptive"),
    ("none", "fixed"),
    ("model", "fixed"),
    ("mtp", "adaptive"),
    ("assistant", "adaptive"),
]


@pytest.mark.parametrize(("drafter", "draft_length"), RESIZED)
def test_an_engine_that_is_resized_in_mid_run_writes_the_same(folders, world, drafter, draft_length):
    options = EngineOptions(num_slots=4, max_model_len=80, drafter=drafter, draft_length=draft_length)
    if drafter in ("mtp", "assistant"):
        target = world.models.target.share()
        head = {"mtp": own_head, "assistant": assistant}[drafter](target)
        engine = Engine.over(Parts(target, head, drafter, 80), options)
    else:
        engine = Engine.load(folders.target, folders.good_draft, options, device="cpu")
    found, sizes = world.rows(), iter([2, 1, 6])
    engine.submit(found)
    for number in range(1000):
        engine.step()
        if number in (2, 5, 9):
            seconds = engine.round_seconds
            engine.resize(next(sizes))
            assert engine.round_seconds == seconds, "rounds of the lanes before are forgotten"
    assert not engine.has_work
    assert engine.options.num_slots == 6
    world.compare(found)


def test_under_rejection_a_lookup_recognizes_a_row_that_comes_back(models):
    """The row's own noise is then not taken for that of another row, which would forbid every lookup."""
    engine = engine_over(models.target, drafter="suffix", num_slots=2, verification="rejection", max_model_len=90)
    rows = numbered([[5, 6, 7, 8] * 5] * 2, temperature=0.2, max_tokens=30, ignore_eos=True)
    engine.submit(rows)
    while not all(len(row.output_token_ids) > 4 for row in rows):
        engine.step()
    before = [row.num_draft_tokens for row in rows]
    engine.evict(rows)
    engine.step()
    drafter = engine.lanes[0].drafter
    assert isinstance(drafter, SuffixDrafter)
    for writer in drafter._writers.values():
        known = drafter._known.of(writer.sequence.scope.texts).continuations
        assert not known.holds_another(writer.sequence.noise_key, writer.number)
    list(engine.stream([]))
    assert sum(row.num_draft_tokens for row in rows) > sum(before)
